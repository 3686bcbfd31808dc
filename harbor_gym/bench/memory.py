"""What idle sandboxes hold of this machine's memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def descendants() -> set[int]:
    """Return every process below this one, as it is now."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def processes_of_container(container: str) -> set[int]:
    """Return a container's processes and the shim that holds it.

    Args:
        container: Its id, or the first twelve characters of it.
    """
    found: set[int] = set()
    for pid in _pids():
        for name in ("cgroup", "cmdline"):
            try:
                text = (_PROC / str(pid) / name).read_text()
            except OSError:
                continue
            if re.search(rf"(?:docker[/-]|-id\x00){re.escape(container)}", text):
                found.add(pid)
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Return the processes' proportional set size together: what they share with others is counted in parts."""
    total = 0
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
        total += int(found[1]) << 10 if found else 0
    return total


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
