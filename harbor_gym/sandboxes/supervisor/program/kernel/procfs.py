"""Read /proc/PID/stat. Source: proc_pid_stat(5)."""

# Separate from the package's _runtime.procfs: the supervisor's program imports no module of the package, and _runtime
# is below the sandboxes, so neither can use the other's. This one reads threads and flags, to tell how far a process
# has ended; that one reads names, groups and seconds, and returns None instead of an error.
import os
from typing import NamedTuple

_MAX_BYTES = 4096
_PF_EXITING = 0x4
"""A flag of include/linux/sched.h."""


class Stat(NamedTuple):
    """One process's /proc/PID/stat."""

    state: str
    parent: int
    flags: int
    threads: int
    start_time: str
    """Start in clock ticks since boot: with the pid it identifies a process."""

    cpu_ticks: int
    """Processor time of the process and of its children that were waited for, in clock ticks."""

    @property
    def has_exited(self) -> bool:
        """Whether all its threads have ended; the others may run on after the first one."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def is_ending(self) -> bool:
        """Whether it runs no more code of its own, though the kernel may not have finished its exit."""
        return bool(self.flags & _PF_EXITING) and self.threads <= 1


def read_stat(pid: int) -> Stat:
    """Return a process's /proc/PID/stat.

    Raises:
        FileNotFoundError, ProcessLookupError: There is no process of that id.
    """
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The name before the last parenthesis may hold anything.
        fields = os.read(handle, _MAX_BYTES).rpartition(b") ")[2].decode().split()
    finally:
        os.close(handle)
    ticks = sum(map(int, fields[11:15]))
    return Stat(fields[0], int(fields[1]), int(fields[6]), int(fields[17]), fields[19], ticks)


def start_time(pid: int) -> str:
    """Return a process's :attr:`Stat.start_time`."""
    return read_stat(pid).start_time


def is_exiting(pid: int) -> bool:
    """Return whether a process is ending or gone."""
    try:
        return bool(read_stat(pid).flags & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True
