"""Read what /proc records of processes and of memory. Source: proc_pid_stat(5), proc_meminfo(5), proc_pid_smaps(5)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class ProcessStat(NamedTuple):
    """One process's /proc/PID/stat."""

    pid: int
    name: str
    """Its executable's name, 15 characters at most."""

    state: str
    """One letter: ``R`` runs, ``S`` sleeps, ``Z`` has exited and was not waited for."""

    parent: int
    group: int
    """Its process group."""

    cpu_sec: float
    """Processor time that it took, user's and kernel's."""

    children_cpu_sec: float
    """Processor time of its children that were waited for."""

    start_time: int
    """Clock ticks from the machine's start to the process's."""

    @property
    def has_exited(self) -> bool:
        """Return whether it is only an entry that its parent has not waited for."""
        return self.state in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return what /proc holds of a process; None where there is none of that id."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace", encoding="utf-8")
    except OSError:
        return None
    head, _, tail = text.rpartition(") ")  # the name may hold anything, parentheses too
    state, *fields = tail.split()
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessStat(
        pid=pid,
        name=head.partition(" (")[2],
        state=state,
        parent=int(fields[0]),
        group=int(fields[1]),
        cpu_sec=(int(fields[10]) + int(fields[11])) / ticks,
        children_cpu_sec=(int(fields[12]) + int(fields[13])) / ticks,
        start_time=int(fields[18]),
    )


def size_bytes(file: str, field: str) -> int | None:
    """Return one of the sizes that a file of lines ``field: number kB`` holds, in bytes; None where there is none.

    Args:
        file: Its path below /proc: ``meminfo``, or ``PID/smaps_rollup``.
        field: The line's first word, such as ``MemAvailable``.
    """
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", (PROC / file).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


def process_ids() -> list[int]:
    """Return the ids of all processes that this one can see."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def all_stats() -> Iterator[ProcessStat]:
    """Give what /proc holds of every process, one after the other; those that end meanwhile may be left out."""
    yield from filter(None, map(read_stat, process_ids()))


def descendants(ancestor: int) -> set[int]:
    """Return every process below one, as it is now."""
    children: dict[int, list[int]] = {}
    for stat in all_stats():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def text_or_empty(path: Path) -> str:
    """Return a file of the kernel's, or a short one of the system's, stripped; empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
