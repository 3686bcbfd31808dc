"""The number of sandboxes that this machine holds at once, for a scheduler."""

import os
from pathlib import Path

from harbor_gym._runtime.procfs import size_bytes, text_or_empty
from harbor_gym.errors import UsageError

USUAL_MEMORY_MB = 2048
"""Memory of a task that declares none, in MiB."""
_SANDBOXES_PER_CPU = 16
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the memory limit of this process's container, in control groups of version 2 and 1."""


def sandboxes_at_once(memory_mb: int) -> int:
    """Return how many sandboxes fit: the free memory divided by theirs, at most 16 a CPU, and at least 1.

    Args:
        memory_mb: Memory of the largest task, in MiB.

    Raises:
        UsageError: It is below 1.
    """
    if memory_mb < 1:
        raise UsageError(f"memory_mb must be at least 1, got {memory_mb}")
    return max(1, min(free_memory_mb() // memory_mb, _SANDBOXES_PER_CPU * len(os.sched_getaffinity(0))))


def free_memory_mb() -> int:
    """Return the free memory of this machine, or of its container's limit if that is less, in MiB."""
    free = size_bytes("meminfo", "MemAvailable")
    assert free is not None, "Linux has it since 3.14"
    return min([free >> 20, *(limit >> 20 for path in _LIMITS if (limit := _limit(path)))])


def _limit(path: Path) -> int:
    """Return a limit in bytes; 0 where there is none."""
    text = text_or_empty(path)
    return int(text) if text.isdigit() else 0
