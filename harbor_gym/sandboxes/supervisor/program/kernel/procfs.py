"""Read /proc/PID/stat. Source: proc_pid_stat(5)."""

# Apart from the package's _runtime.procfs: the supervisor's program imports nothing of the package, and _runtime stands
# below the sandboxes, so neither can use the other's. This one tells how far a process has ended, by its threads and
# flags; that one gives names, groups and seconds, and None instead of an error.
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
    """Clock ticks from the machine's start to the process's: with the pid it names a process beyond doubt."""

    cpu_ticks: int
    """Processor time of the process and of its children that were waited for, in clock ticks."""

    @property
    def has_exited(self) -> bool:
        """Return whether all of it has ended: where the first thread alone has, the others run on."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def is_ending(self) -> bool:
        """Return whether all of it runs no more code of its own, though the kernel may not be done with it."""
        return bool(self.flags & _PF_EXITING) and self.threads <= 1


def read_stat(pid: int) -> Stat:
    """Return what /proc holds of a process.

    Raises:
        FileNotFoundError, ProcessLookupError: There is none of that id.
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
    """Return when a process started."""
    return read_stat(pid).start_time


def is_exiting(pid: int) -> bool:
    """Return whether a process has begun to end, or is gone."""
    try:
        return bool(read_stat(pid).flags & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True
