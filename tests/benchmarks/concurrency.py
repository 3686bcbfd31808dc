"""Many terminals at once in one process: is every step answered, and does the event loop stay free?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import override

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.terminal import Terminal, open_terminal
from harbor_gym.types import Command
from tests.benchmarks.report import BenchReport, percentile
from tests.benchmarks.sandbox import PROMPT, started_environment
from tests.benchmarks.steps import terminal_config

_TICK_SEC = 0.01
_STARTS_AT_ONCE = 8
_LONG_SEC = 60.0
"""Ceiling on each step, which only a lost one reaches."""


@dataclass(frozen=True, slots=True)
class ConcurrencyReport(BenchReport):
    """The results of ``make bench ARGS=concurrency``."""

    env: str
    terminals: int
    steps: int
    """Steps of all terminals together."""

    lost: int
    """Steps with an observation that lacked their output."""

    start_sec: float
    """Wall-clock time until all sandboxes and terminals were open."""

    wall_sec: float
    """Wall-clock time of all steps, without the start."""

    step_p50_ms: float
    step_p99_ms: float
    lag_p50_ms: float
    """How late the event loop ran a timer while the steps were taken, median."""

    lag_p99_ms: float
    transports: dict[str, int]
    """Transport → steps that came over it."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether no step was lost."""
        return self.lost == 0


async def bench_concurrency(
    sandbox: str, *, terminals: int, steps: int, transport: str | None = None
) -> ConcurrencyReport:
    """Open ``terminals`` terminals, each in a sandbox of its own, and let all take ``steps`` steps at once.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        terminals: How many at once.
        steps: How many each.
        transport: The transport to use; None leaves the choice to the terminal.

    Raises:
        SandboxStartError: A sandbox did not start.
        TerminalStartError: A terminal did not open.
        SandboxLostError: A sandbox is gone.
    """
    run = _Run(sandbox, steps, transport, asyncio.Barrier(terminals + 1), asyncio.Semaphore(_STARTS_AT_ONCE))
    lags: list[float] = []
    started = time.perf_counter()
    async with task_group() as group:
        tasks = [group.create_task(_live(number, run)) for number in range(terminals)]
        await run.barrier.wait()
        start_sec, started = time.perf_counter() - started, time.perf_counter()
        watch = group.create_task(watch_loop(lags))
        await run.barrier.wait()
        wall_sec = time.perf_counter() - started
        watch.cancel()
    results = [result for task in tasks for result in task.result()]
    durations = [result.seconds * 1000 for result in results]
    return ConcurrencyReport(
        env=sandbox,
        terminals=terminals,
        steps=len(results),
        lost=sum(not result.is_right for result in results),
        start_sec=round(start_sec, 3),
        wall_sec=round(wall_sec, 3),
        step_p50_ms=round(percentile(durations, 50), 2),
        step_p99_ms=round(percentile(durations, 99), 2),
        lag_p50_ms=round(percentile(lags, 50) * 1000, 2),
        lag_p99_ms=round(percentile(lags, 99) * 1000, 2),
        transports=dict(Counter(result.transport for result in results)),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    sandbox: str
    steps: int
    transport: str | None
    barrier: asyncio.Barrier
    """Passed when all terminals are open, and again when all steps are taken."""

    starts: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class _Result:
    seconds: float
    is_right: bool
    transport: str


async def _live(number: int, run: _Run) -> list[_Result]:
    """Hold one sandbox and its terminal from the start to the end of the benchmark."""
    async with AsyncExitStack() as stack:
        async with run.starts:
            environment = await stack.enter_async_context(started_environment(run.sandbox))
            terminal = await open_terminal(environment, terminal_config(run.transport))
            stack.push_async_callback(terminal.close)
            await terminal.run([])
        await run.barrier.wait()
        results = [await _take(terminal, number, step) for step in range(run.steps)]
        await run.barrier.wait()
        return results


async def _take(terminal: Terminal, number: int, step: int) -> _Result:
    """Take one step; every third one sleeps, so that terminals drift apart as episodes do."""
    pause = "sleep 0.2; " if step % 3 == 2 else ""
    started = time.perf_counter()
    turn = await terminal.run([Command(f"{pause}echo t{number}-$(({step} + 1000))\n", _LONG_SEC)])
    seconds = time.perf_counter() - started
    lines = [line.rstrip() for line in turn.text.split("\n")]
    is_right = lines.count(f"t{number}-{step + 1000}") == 1 and lines[-1] == PROMPT
    return _Result(seconds, is_right, turn.transport)


async def watch_loop(lags: list[float]) -> None:
    """Note how late the loop runs a timer, until cancelled."""
    while True:
        started = time.perf_counter()
        await asyncio.sleep(_TICK_SEC)
        lags.append(time.perf_counter() - started - _TICK_SEC)
