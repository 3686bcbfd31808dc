"""The number of sandboxes that this machine holds at once, for a scheduler."""

import os
from pathlib import Path

from harbor_gym._runtime.procfs import size_bytes
from harbor_gym.errors import UsageError

USUAL_MEMORY_MB = 2048
"""A task's memory where nothing else is known of it, in MiB."""
_SANDBOXES_PER_CPU = 16
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the container that this process runs in, with control groups of version 2 and 1."""


def sandboxes_at_once(memory_mb: int) -> int:
    """Return how many sandboxes of this size fit: memory that is free now by their own, or 16 a CPU, the lesser; or 1.

    Args:
        memory_mb: The largest task's, in MiB.

    Raises:
        UsageError: It is below 1.
    """
    if memory_mb < 1:
        raise UsageError(f"memory_mb must be at least 1, got {memory_mb}")
    return max(1, min(_free_mb() // memory_mb, _SANDBOXES_PER_CPU * len(os.sched_getaffinity(0))))


def _free_mb() -> int:
    free = size_bytes("meminfo", "MemAvailable")
    assert free is not None, "Linux has it since 3.14"
    return min([free >> 20, *(limit >> 20 for path in _LIMITS if (limit := _limit(path)))])


def _limit(path: Path) -> int:
    """Return a limit in bytes; 0 where there is none."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
