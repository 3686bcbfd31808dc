"""Limit a container's memory without control groups: watch its processes, and kill the branch that uses too much.

The measure is the proportional set size (PSS), in which a page shared by several processes counts once. Reading it
takes milliseconds for a large process, so the resident set size, which is never less, is read first and more often.

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
"""Share of the limit at which a branch is killed: processes that grow while they are measured stay below the limit."""
_CALM_SEC, _ALERT_SEC = 0.5, 0.05
_ALERT_AT = 0.5
"""Share of the limit above which memory is measured every ``_ALERT_SEC``."""
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
    """Distinguishes processes with the same pid."""


class Watchdog:
    """Watches the processes of one PID namespace until :meth:`stop`."""

    def __init__(self, find: Callable[[], int], limit_bytes: int) -> None:
        """Make a watchdog that does not watch yet.

        Args:
            find: Returns the container's first process; raises if it is gone.
            limit_bytes: Limit of the memory of all processes together.
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
            used, kill = await asyncio.to_thread(enforce_limit, first, self._limit, self._dying)
            if kill is not None:
                self._dying |= frozenset(kill.processes)
                _logger.warning("an apptainer sandbox needed more memory than it has: %s", kill)
                self.kills.append(kill)
            await asyncio.sleep(_ALERT_SEC if used > _ALERT_AT * self._limit else _CALM_SEC)


def enforce_limit(
    first: int, limit_bytes: int, dying: frozenset[Member] = frozenset()
) -> tuple[int, MemoryKill | None]:
    """Measure the memory of a container once, and kill the heaviest branch if it is too much. Blocks.

    Args:
        first: The first process; the container's processes are those in its PID namespace.
        limit_bytes: Limit of the memory of all processes together.
        dying: Processes that were killed before, whose memory is being freed.

    Returns:
        An upper bound on the used memory, in bytes, and the branch that was killed, if any.
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
    """Return the smallest subtree with the greater part of the memory, without the shell that started it.

    From the heaviest tree the search descends as long as one child's subtree has more than half of its parent's memory.

    Args:
        processes: The processes that may be killed.
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
    """Fill in the memory of each process's subtree, leaves first."""
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
    """Kill a process, but not another one that has got its pid."""
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
    """Return a process's proportional set size; its resident set size if that can't be read."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident_bytes(pid)
