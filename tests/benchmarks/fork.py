"""A running episode and its copies: what does a snapshot cost, and a copy beside the turns that it repeats?"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import override

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.procfs import size_bytes
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local import criu
from harbor_gym.types import ForkMode
from tests.benchmarks.report import BenchReport, percentile
from tests.benchmarks.sandbox import bench_task
from tests.benchmarks.scale.holdings import fill_executor, take_holdings, take_settled_holdings

_FIRST_CYCLES = 5
"""Not counted: what they leave is made once."""
_BEGIN, _ASK = "x=held; cd /tmp\n", "pwd; echo $x; cat turn\n"


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies in one mode. Times are medians of wall-clock times."""

    mode: str
    """How the copies were made."""

    fork_ms: float
    """One copy, until it stands where the parent does."""

    fork_all_ms: float
    """``copies`` at once."""

    dump_ms: float | None
    """Of ``fork_ms``: the parent's dump, which all copies of one call share."""

    dump_mib: float | None
    wrong: int
    """Copies, and copies of a copy, that did not have the parent's directory, variable and file."""


@dataclass(frozen=True, slots=True)
class ForkReport(BenchReport):
    """The results of ``make bench ARGS=fork``. Times are wall-clock times; those of repeated work are medians."""

    env: str
    turns: int
    repeat: int
    copies: int
    turns_ms: float
    """The parent's turns, played once."""

    first_snapshot_ms: float
    """With the digest of the task's files."""

    snapshot_ms: float
    rows: tuple[CopyRow, ...]
    exact_to_replay: float | None
    """``fork_ms`` of the one mode over the other's; None where processes are not copied."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every copy stood where its parent did."""
        return not any(row.wrong for row in self.rows)


async def bench_fork(sandbox: str, *, turns: int, copies: int, repeat: int) -> ForkReport:
    """Play ``turns`` turns, copy the episode, one and ``copies`` at once, and each time a copy of a copy.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        turns: The parent's, which a replay repeats; 2 at least.
        copies: How many at once.
        repeat: Times that copies are made.

    Raises:
        HarborGymError: A sandbox did not start, or a replay differed.
    """
    options = await _options(sandbox)
    async with _playing(sandbox, options, turns) as (parent, turns_ms):
        first_snapshot_ms = (await _timed(parent.snapshot()))[0]
        snapshots = [(await _timed(parent.snapshot()))[0] for _ in range(repeat)]
        expected = _expected(turns)
        modes: tuple[ForkMode, ...] = ("replay", "exact") if options else ("replay",)
        rows = tuple([await _copy(parent, mode, copies, repeat, expected) for mode in modes])
    return ForkReport(
        env=sandbox,
        turns=turns,
        repeat=repeat,
        copies=copies,
        turns_ms=round(turns_ms, 1),
        first_snapshot_ms=round(first_snapshot_ms, 1),
        snapshot_ms=round(percentile(snapshots, 50), 3),
        rows=rows,
        exact_to_replay=round(rows[1].fork_ms / rows[0].fork_ms, 2) if options else None,
    )


@contextlib.asynccontextmanager
async def _playing(
    sandbox: str, options: dict[str, bool], turns: int
) -> AsyncGenerator[tuple[AsyncTerminalGymEnv, float]]:
    """Yield an episode that has played turns, and the milliseconds that they took."""
    async with AsyncExitStack() as opened:
        task_dir = opened.enter_context(bench_task())
        config = TerminalEnvConfig(
            task_dir=task_dir, sandbox=sandbox, sandbox_options=options, max_turns=None, time_limit_sec=86_400
        )
        parent = await opened.enter_async_context(AsyncTerminalGymEnv(config))
        await parent.reset()
        started = time.perf_counter()
        for line in (_BEGIN, *(f"echo turn-{number} > turn\n" for number in range(1, turns))):
            await parent.step([(line, 1.0)])
        yield parent, (time.perf_counter() - started) * 1000


async def _copy(parent: AsyncTerminalGymEnv, mode: ForkMode, copies: int, repeat: int, expected: str) -> CopyRow:
    """Copy the episode, one and ``copies`` at once, and each time a copy of a copy."""
    times: dict[int, list[float]] = {1: [], copies: []}
    dumps: list[dict[str, float]] = []
    wrong = 0
    for count in (1, copies) * repeat:
        milliseconds, made = await _timed(parent.fork(count, mode=mode))
        times[count].append(milliseconds)
        async with AsyncExitStack() as held:
            for copy in made:
                await held.enter_async_context(copy)
            (grandchild,) = await made[0].fork(1, mode=mode)
            await held.enter_async_context(grandchild)
            info = (await made[0].reset())[1]
            wrong += info.get("fork_mode") != mode
            dumps.append(info["metrics"])
            for copy in (*made, grandchild):
                wrong += expected not in (await copy.step([(_ASK, 1.0)])).observation

    def of_dump(metric: str, scale: float) -> float | None:
        return round(percentile([each[metric] for each in dumps], 50) * scale, 2) if mode == "exact" else None

    return CopyRow(
        mode=mode,
        fork_ms=round(percentile(times[1], 50), 1),
        fork_all_ms=round(percentile(times[copies], 50), 1),
        dump_ms=of_dump("time/dump_sec", 1000),
        dump_mib=of_dump("fork/dump_bytes", 2**-20),
        wrong=wrong,
    )


async def _options(sandbox: str) -> dict[str, bool]:
    if sandbox == "local":
        with contextlib.suppress(SandboxError):
            await criu.found()
            return {"forkable": True}
    return {}


async def _timed[T](work: Awaitable[T]) -> tuple[float, T]:
    """Return the milliseconds of an awaitable, and its result."""
    started = time.perf_counter()
    result = await work
    return (time.perf_counter() - started) * 1000, result


def _expected(turns: int) -> str:
    """Return what the screen of each copy shows behind ``_ASK``."""
    return f"\n/tmp\nheld\nturn-{turns - 1}\n"


@dataclass(frozen=True, slots=True)
class CyclesReport(BenchReport):
    """The results of ``make bench ARGS="fork --cycles 1000"``: what copies left that were made and closed in turn."""

    env: str
    mode: str
    cycles: int
    wall_sec: float
    wrong: int
    """Copies that did not have the parent's directory, variable and file."""

    left: tuple[str, ...]
    """What there is more of than before the first counted cycle, while the parent runs."""

    growth_kib: float
    """What this process holds more, per cycle."""

    growth_below_kib: float
    """What the processes below it hold more, per cycle: the parent's sandbox, and the process that starts sandboxes."""

    machine_shmem_mib: float
    """What all tmpfs of the machine hold more; other processes of the machine are in it."""

    machine_networks: int | None
    """Network namespaces that the kernel has more, likewise; None where it does not tell."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every copy stood where its parent did, and nothing is left."""
        return not (self.wrong or self.left)


async def bench_cycles(
    sandbox: str, *, turns: int, cycles: int, on_progress: Callable[[int], object] | None = None
) -> CyclesReport:
    """Copy a running episode and close the copy, so many times in turn; look at what is left.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        turns: The parent's, 2 at least.
        cycles: How many, beside the first ones that are not counted.
        on_progress: Called with the number of counted cycles after each.

    Raises:
        HarborGymError: A sandbox did not start, or a replay differed.
    """
    options = await _options(sandbox)
    mode: ForkMode = "exact" if options else "replay"
    wrong = 0
    async with _playing(sandbox, options, turns) as (parent, _):

        async def cycle() -> None:
            nonlocal wrong
            (copy,) = await parent.fork(1, mode=mode)
            async with copy:
                wrong += _expected(turns) not in (await copy.step([(_ASK, 1.0)])).observation

        for _ in range(_FIRST_CYCLES):
            await cycle()
        await fill_executor()
        before, machine = await asyncio.to_thread(lambda: (take_holdings(), _machine()))
        started = time.perf_counter()
        for number in range(cycles):
            await cycle()
            if on_progress is not None:
                on_progress(number + 1)
        wall_sec = time.perf_counter() - started
        after = await asyncio.to_thread(take_settled_holdings, before)
        then = await asyncio.to_thread(_machine)
    return CyclesReport(
        env=sandbox,
        mode=mode,
        cycles=cycles,
        wall_sec=round(wall_sec, 1),
        wrong=wrong,
        left=tuple(after.exceeds(before)),
        growth_kib=round((after.host_bytes - before.host_bytes) / 1024 / cycles, 3),
        growth_below_kib=round((after.below_bytes - before.below_bytes) / 1024 / cycles, 3),
        machine_shmem_mib=round((then[0] - machine[0]) * 2**-20, 1),
        machine_networks=None if then[1] is None or machine[1] is None else then[1] - machine[1],
    )


def _machine() -> tuple[int, int | None]:
    """Return the bytes in the machine's tmpfs, and the number of its network namespaces."""
    networks = None
    with contextlib.suppress(OSError):
        found = re.search(r"^net_namespace +(\d+)", Path("/proc/slabinfo").read_text(encoding="utf-8"), re.MULTILINE)
        networks = int(found[1]) if found else None
    return size_bytes("meminfo", "Shmem") or 0, networks


def format_fork(report: ForkReport) -> str:
    """Return a report for people: its fields, and a row for each mode."""
    fields = [(name, str(value)) for name, value in report.as_object().items() if name != "rows"]
    head = [field.name for field in dataclasses.fields(CopyRow)]
    cells = [[str(getattr(row, name)) for name in head] for row in report.rows]
    return plain_table((), fields) + "\n\n" + plain_table(head, cells, right=range(1, len(head)))
