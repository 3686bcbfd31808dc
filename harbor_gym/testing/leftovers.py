"""Find the leftovers of a test on this machine: processes, mounts, temporary folders."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from harbor_gym._runtime.procfs import descendants, read_stat


def find_leftovers(*, is_exempt: Callable[[int], bool]) -> set[str]:
    """Return this process's leftovers on the machine, one line each.

    Its descendants, the mounts of harbor_gym that are visible from here, and harbor_gym's temporary folders.

    Args:
        is_exempt: Whether a process lives as long as this one on purpose.
    """
    mounts = {
        f"mount {line}" for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines() if "harbor" in line
    }
    folders = {f"folder {path}" for path in Path(tempfile.gettempdir()).glob("harbor-gym*")}
    stats = filter(None, map(read_stat, descendants(os.getpid())))
    processes = {f"process {stat.pid} {stat.name}" for stat in stats if not is_exempt(stat.pid)}
    return mounts | folders | processes
