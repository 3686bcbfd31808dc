"""What idle sandboxes hold of this machine's memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harbor_gym._runtime.procfs import PROC, process_ids


def processes_of_container(container: str) -> set[int]:
    """Return a container's processes and the shim that holds it.

    Args:
        container: Its id, or the first twelve characters of it.
    """
    found: set[int] = set()
    for pid in process_ids():
        for name in ("cgroup", "cmdline"):
            try:
                text = (PROC / str(pid) / name).read_text()
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
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
        total += int(found[1]) << 10 if found else 0
    return total
