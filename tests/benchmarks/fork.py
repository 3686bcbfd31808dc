"""A running episode and its copies: what does a snapshot cost, and a copy beside the turns that it repeats?"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import override

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.bench.report import BenchReport, percentile
from harbor_gym.bench.sandbox import bench_task

_BEGIN, _ASK = "x=held; cd /tmp\n", "pwd; echo $x; cat turn\n"


@dataclass(frozen=True, slots=True)
class ForkReport(BenchReport):
    """What ``make bench ARGS=fork`` found. Times are wall-clock times; of what was repeated, medians."""

    env: str
    mode: str
    """How the copies were made."""

    turns: int
    repeat: int
    copies: int
    turns_ms: float
    """The parent's turns, played once."""

    first_snapshot_ms: float
    """With the digest of the task's files."""

    snapshot_ms: float
    fork_ms: float
    """One copy, until it stands where the parent does."""

    fork_all_ms: float
    """``copies`` at once."""

    wrong: int
    """Copies, and copies of a copy, that did not have the parent's directory, variable and file."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every copy stood where its parent did."""
        return self.wrong == 0


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
    async with AsyncExitStack() as opened:
        task_dir = opened.enter_context(bench_task())
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, max_turns=None, time_limit_sec=86_400)
        parent = await opened.enter_async_context(AsyncTerminalGymEnv(config))
        await parent.reset()
        started = time.perf_counter()
        for line in (_BEGIN, *(f"echo turn-{number} > turn\n" for number in range(1, turns))):
            await parent.step([(line, 1.0)])
        turns_ms = (time.perf_counter() - started) * 1000
        first_snapshot_ms = (await _timed(parent.snapshot()))[0]
        snapshots = [(await _timed(parent.snapshot()))[0] for _ in range(repeat)]
        times: dict[int, list[float]] = {}
        wrong, mode = 0, ""
        for count in (1, copies) * repeat:
            milliseconds, made = await _timed(parent.fork(count))
            times.setdefault(count, []).append(milliseconds)
            async with AsyncExitStack() as held:
                for copy in made:
                    await held.enter_async_context(copy)
                (grandchild,) = await made[0].fork(1)
                await held.enter_async_context(grandchild)
                mode = (await made[0].reset())[1].get("fork_mode", "")
                for copy in (*made, grandchild):
                    seen = (await copy.step([(_ASK, 1.0)])).observation
                    wrong += f"\n/tmp\nheld\nturn-{turns - 1}\n" not in seen
    return ForkReport(
        env=sandbox,
        mode=mode,
        turns=turns,
        repeat=repeat,
        copies=copies,
        turns_ms=round(turns_ms, 1),
        first_snapshot_ms=round(first_snapshot_ms, 1),
        snapshot_ms=round(percentile(snapshots, 50), 3),
        fork_ms=round(percentile(times[1], 50), 1),
        fork_all_ms=round(percentile(times[copies], 50), 1),
        wrong=wrong,
    )


async def _timed[T](work: Awaitable[T]) -> tuple[float, T]:
    """Return the milliseconds that something took, and what it returned."""
    started = time.perf_counter()
    result = await work
    return (time.perf_counter() - started) * 1000, result
