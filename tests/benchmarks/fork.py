"""A running episode and its copies: what does a snapshot cost, and a copy beside the turns that it repeats?"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import override

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.bench.report import BenchReport, percentile
from harbor_gym.bench.sandbox import bench_task
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local import criu
from harbor_gym.types import ForkMode

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
    options = {"forkable": True} if sandbox == "local" and await _copies_processes() else {}
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
        turns_ms = (time.perf_counter() - started) * 1000
        first_snapshot_ms = (await _timed(parent.snapshot()))[0]
        snapshots = [(await _timed(parent.snapshot()))[0] for _ in range(repeat)]
        expected = f"\n/tmp\nheld\nturn-{turns - 1}\n"
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


async def _copies_processes() -> bool:
    with contextlib.suppress(SandboxError):
        return bool(await criu.found())
    return False


async def _timed[T](work: Awaitable[T]) -> tuple[float, T]:
    """Return the milliseconds of an awaitable, and its result."""
    started = time.perf_counter()
    result = await work
    return (time.perf_counter() - started) * 1000, result


def format_fork(report: ForkReport) -> str:
    """Return a report for people: its fields, and a row for each mode."""
    fields = [(name, str(value)) for name, value in report.as_object().items() if name != "rows"]
    head = [field.name for field in dataclasses.fields(CopyRow)]
    cells = [[str(getattr(row, name)) for name in head] for row in report.rows]
    return plain_table((), fields) + "\n\n" + plain_table(head, cells, right=range(1, len(head)))
