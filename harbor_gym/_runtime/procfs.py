"""Read what /proc records of processes and of memory. Source: proc_pid_stat(5), proc_meminfo(5), proc_pid_smaps(5)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """One process's /proc/PID/stat."""

    pid: int
    name: str
    """Its executable's name, 15 characters at most."""

    state: str
    """One letter, such as ``R`` (running), ``S`` (sleeping) or ``Z`` (exited and not waited for)."""

    parent: int
    group: int
    """Its process group."""

    cpu_sec: float
    """Its user and system processor time."""

    children_cpu_sec: float
    """Processor time of its children that were waited for."""

    start_time: int
    """Clock ticks from the machine's start to the process's."""

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited, and only its entry is left."""
        return self.state in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Return a process's /proc/PID/stat; None if there is no process of that id."""
    # Read by a Path, it would take three times as long, and searches read it of every process.
    try:
        file = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(file, 4096).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(file)
    head, _, tail = text.rpartition(") ")  # the name may hold anything, parentheses too
    state, *fields = tail.split()
    return ProcessStat(
        pid=pid,
        name=head.partition(" (")[2],
        state=state,
        parent=int(fields[0]),
        group=int(fields[1]),
        cpu_sec=(int(fields[10]) + int(fields[11])) / _TICKS,
        children_cpu_sec=(int(fields[12]) + int(fields[13])) / _TICKS,
        start_time=int(fields[18]),
    )


def size_bytes(file: str, field: str) -> int | None:
    """Return one size in bytes from a file of lines ``field: number kB``; None if it is missing.

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
    """Yield every process's /proc/PID/stat; processes that end meanwhile may be left out."""
    yield from filter(None, map(read_stat, process_ids()))


def descendants(ancestor: int) -> set[int]:
    """Return the ids of all current descendants of a process."""
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
    """Return a short file's text, stripped; empty if it can't be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
