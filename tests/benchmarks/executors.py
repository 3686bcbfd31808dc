"""Groups of episodes played in this process, in others, and by Ray's workers: the cost of an episode in each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import statistics
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.cluster import open_executor
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.types import ExecutorKind
from tests.benchmarks.report import BenchReport
from tests.benchmarks.sandbox import bench_task

_CALLS = 50


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """One way to play the groups."""

    way: str
    episodes: int
    ungraded: int
    """Episodes without a verdict."""

    wall_sec: float
    """All groups, with workers that are warm."""

    episode_ms: float
    """``wall_sec`` by episode."""

    call_ms: float
    """Median of a call that does nothing, one after the other."""

    ready_sec: float
    """From the executor's start until every worker had played a group."""


@dataclass(frozen=True, slots=True)
class ExecutorReport(BenchReport):
    """The results of ``make bench ARGS=executors``."""

    env: str
    cpus: int
    workers: int
    group_size: int
    rows: list[ExecutorRow]

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every episode was graded."""
        return not any(row.ungraded for row in self.rows)


def bench_executors(
    sandbox: str, *, groups: int, group_size: int, workers: int, kinds: tuple[ExecutorKind, ...]
) -> ExecutorReport:
    """Play the same groups in this process and by each kind of executor. Blocks.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        groups: Groups to count.
        group_size: Episodes of a group, which run side by side.
        workers: Groups at the same time.
        kinds: The executors.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    with bench_task() as task_dir:
        play = functools.partial(play_group, TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox), group_size)
        rows: list[ExecutorRow] = []
        for kind in (None, *kinds):
            started = time.perf_counter()
            with _executor(kind, workers, group_size) as executor:
                rows.append(_measure(kind, executor, play, groups, workers, started))
    return ExecutorReport(sandbox, os.cpu_count() or 1, workers, group_size, rows)


def play_group(config: TerminalEnvConfig, size: int) -> list[float | None]:
    """Play episodes of one step side by side in an event loop of their own, and return their rewards."""
    return asyncio.run(_play(config, size))


async def _play(config: TerminalEnvConfig, size: int) -> list[float | None]:
    async def episode() -> float | None:
        async with AsyncTerminalGymEnv(config) as env:
            await env.reset()
            await env.step([("ls\n", 1.0)])
            return (await env.finish()).reward

    return await asyncio.gather(*(episode() for _ in range(size)))


def _executor(kind: ExecutorKind | None, workers: int, group_size: int) -> contextlib.AbstractContextManager[Executor]:
    if kind is None:
        return ThreadPoolExecutor(workers)
    return open_executor(kind, workers, sandboxes_per_worker=group_size)


def _measure(
    kind: ExecutorKind | None, executor: Executor, play: Any, groups: int, workers: int, started: float
) -> ExecutorRow:
    _play_all(executor, play, workers)
    ready = time.perf_counter()
    rewards = _play_all(executor, play, groups)
    wall_sec = time.perf_counter() - ready
    return ExecutorRow(
        way=kind.value if kind is not None else "this process",
        episodes=len(rewards),
        ungraded=sum(reward is None for reward in rewards),
        wall_sec=round(wall_sec, 3),
        episode_ms=round(wall_sec / len(rewards) * 1000, 2),
        call_ms=round(statistics.median(_call_sec(executor) for _ in range(_CALLS)) * 1000, 3),
        ready_sec=round(ready - started, 2),
    )


def _play_all(executor: Executor, play: Any, groups: int) -> list[float | None]:
    futures = [executor.submit(play) for _ in range(groups)]
    return [reward for future in futures for reward in future.result()]


def _call_sec(executor: Executor) -> float:
    started = time.perf_counter()
    executor.submit(int).result()
    return time.perf_counter() - started


def format_executors(report: ExecutorReport) -> str:
    """Return the report as a table for people."""
    head = ("groups played in", "episodes", "ms an episode", "of this process's", "ms an empty call", "ready after s")
    first = report.rows[0].episode_ms
    lines = [
        (
            *(row.way, str(row.episodes), f"{row.episode_ms:.1f}", f"{row.episode_ms / first:.2f}"),
            *(f"{row.call_ms:.1f}", f"{row.ready_sec:.1f}"),
        )
        for row in report.rows
    ]
    return plain_table(head, lines, right=range(1, len(head)))
