"""Bound a container's memory without control groups: watch what its processes hold, and kill the branch that has it.

What counts is the proportional set size (PSS), in which a page that several processes share counts once. Reading it
takes milliseconds for a large process, so the resident set size, which is never less, is read first and most often.

Source: proc_pid_smaps(5), proc_pid_statm(5).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from harbor_gym._runtime.procfs import PROC, all_stats, read_stat

_logger = logging.getLogger(__name__)

KILLED_AT = 0.95
"""Share of the limit at which a branch is killed: what grows while it is being looked at stays below the limit."""
_CALM_SEC, _ALERT_SEC = 0.5, 0.05
_ALERT_AT = 0.5
"""Share of the limit from which on memory is looked at as often as can be."""
_MAJORITY = 0.5


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """One branch that was killed."""

    processes: tuple[Member, ...]
    held_bytes: int
    """Memory of the branch."""

    used_bytes: int
    """Memory of the whole container."""

    limit_bytes: int

    def __str__(self) -> str:
        held, used, limit = (number >> 20 for number in (self.held_bytes, self.used_bytes, self.limit_bytes))
        count = len(self.processes)
        return (
            f"its processes held {used} MiB of {limit} (memory_mb), {held} of them in {count} "
            f"process{'es' if count > 1 else ''}, killed"
        )


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a container."""

    pid: int
    parent: int
    start_time: int
    """With the pid it names a process beyond doubt."""


class Watchdog:
    """Watches the processes of one PID namespace until :meth:`stop`."""

    def __init__(self, find: Callable[[], int], limit_bytes: int) -> None:
        """Take what to watch.

        Args:
            find: Returns the container's first process; raises where it is gone.
            limit_bytes: What all of its processes may hold together.
        """
        self._find = find
        self._limit = limit_bytes
        self._task: asyncio.Task[None] | None = None
        self.kills: list[MemoryKill] = []
        self._dying: frozenset[Member] = frozenset()

    @property
    def killed_processes(self) -> int:
        """Processes killed so far."""
        return sum(len(kill.processes) for kill in self.kills)

    def start(self) -> None:
        """Begin to watch, in a task of the running loop."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _watch(self) -> None:
        first = self._find()
        while True:
            used, kill = await asyncio.to_thread(look, first, self._limit, self._dying)
            if kill is not None:
                self._dying |= frozenset(kill.processes)
                _logger.warning("an apptainer sandbox needed more memory than it has: %s", kill)
                self.kills.append(kill)
            await asyncio.sleep(_ALERT_SEC if used > _ALERT_AT * self._limit else _CALM_SEC)


def look(first: int, limit_bytes: int, dying: frozenset[Member] = frozenset()) -> tuple[int, MemoryKill | None]:
    """Look once at the memory of a container, and kill the branch that holds it where that is too much. Blocks.

    Args:
        first: The first process, whose descendants and namespace mates are the container's.
        limit_bytes: What all of them may hold together.
        dying: Processes that were killed before: what they still hold is on its way back.

    Returns:
        What they hold, at most, and what was killed.
    """
    processes = [item for item in members(first) if item not in dying]
    resident = sum(_resident_bytes(item.pid) for item in processes)
    if resident <= KILLED_AT * limit_bytes:
        return resident, None
    held = {item.pid: _pss_bytes(item.pid) for item in processes}
    used = sum(held.values())
    if used <= KILLED_AT * limit_bytes:
        return used, None
    branch = heaviest_branch([item for item in processes if item.pid != first], held)
    for item in branch:
        _kill(item)
    total = sum(held[item.pid] for item in branch)
    return used, MemoryKill(tuple(branch), total, used, limit_bytes) if branch else None


def members(first: int) -> list[Member]:
    """Return the processes of a container: all in the PID namespace of its first one."""
    try:
        namespace = (PROC / str(first) / "ns" / "pid").readlink()
    except OSError:
        return []
    found: list[Member] = []
    for stat in all_stats():
        with contextlib.suppress(OSError):
            if (PROC / str(stat.pid) / "ns" / "pid").readlink() == namespace:
                found.append(Member(stat.pid, stat.parent, stat.start_time))
    return found


def heaviest_branch(processes: list[Member], held: dict[int, int]) -> list[Member]:
    """Return the smallest subtree that holds the greater part of the memory: a hog without the shell that started it.

    From the heaviest tree it goes down as long as one child's subtree holds more than half of what its parent's does.

    Args:
        processes: Those that may be killed.
        held: Process id → bytes.
    """
    children: dict[int, list[Member]] = {}
    known = {item.pid for item in processes}
    for item in processes:
        children.setdefault(item.parent if item.parent in known else 0, []).append(item)
    weights: dict[int, int] = {}
    _weigh(0, children, held, weights)
    above, weight = 0, weights[0]
    chosen: Member | None = None
    while children.get(above):
        child = max(children[above], key=lambda item: weights[item.pid])
        if chosen is not None and weights[child.pid] <= _MAJORITY * weight:
            break
        chosen, above, weight = child, child.pid, weights[child.pid]
    return [] if chosen is None else _subtree(chosen, children)


def _weigh(pid: int, children: dict[int, list[Member]], held: dict[int, int], weights: dict[int, int]) -> None:
    """Fill in what each process's subtree holds, leaves first."""
    order = [pid]
    for at in order:
        order += [item.pid for item in children.get(at, ())]
    for at in reversed(order):
        weights[at] = held.get(at, 0) + sum(weights[item.pid] for item in children.get(at, ()))


def _subtree(top: Member, children: dict[int, list[Member]]) -> list[Member]:
    found = [top]
    for item in found:
        found += children.get(item.pid, ())
    return found


def _kill(process: Member) -> None:
    """Kill a process, and never another one that has its number by now."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            stat = read_stat(process.pid)
            if stat is not None and stat.start_time == process.start_time:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((PROC / str(pid) / "statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _pss_bytes(pid: int) -> int:
    """Return a process's proportional set size; its resident one where an old kernel or the process keeps it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident_bytes(pid)
