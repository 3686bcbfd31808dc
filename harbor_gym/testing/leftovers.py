"""What a test may leave behind on this machine: processes, mounts, temporary folders."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def find_leftovers(*, is_exempt: Callable[[int], bool]) -> set[str]:
    """Return what this process has on the machine now, a line each.

    Its descendants, the mounts of harbor_gym that are visible from here, and harbor_gym's temporary folders.

    Args:
        is_exempt: Whether a process lives as long as this one on purpose.
    """
    mounts = {f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if "harbor" in line}
    folders = {f"folder {path}" for path in Path(tempfile.gettempdir()).glob("harbor-gym*")}
    processes = {f"process {pid} {name}" for pid, name in _descendants().items() if not is_exempt(pid)}
    return mounts | folders | processes


def _descendants() -> dict[int, str]:
    """Return the name of each process below this one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        parents[int(entry.name)] = (int(rest.split()[1]), name)
    found: dict[int, str] = {}
    for pid, (_, name) in parents.items():
        ancestor = pid
        while ancestor > 1 and ancestor != os.getpid():
            ancestor = parents.get(ancestor, (0, ""))[0]
        if ancestor == os.getpid() and pid != os.getpid():
            found[pid] = name
    return found
