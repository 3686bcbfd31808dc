"""Many live sandboxes in one process: the time until all show a prompt, the memory of each, and lost ones."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, override

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.episode.prepared import PreparedEpisode
from harbor_gym.errors import HarborGymError
from harbor_gym.types import Command
from tests.benchmarks.concurrency import watch_loop
from tests.benchmarks.report import BenchReport, percentile
from tests.benchmarks.sandbox import bench_task
from tests.benchmarks.scale.holdings import Holdings, fill_executor, take_holdings, take_settled_holdings

_ECHO_SEC = 60.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ScaleReport(BenchReport):
    """The results of ``make bench ARGS=scale``."""

    env: str
    cpus: int
    sandboxes: int
    starts_at_once: int
    lost: int
    """Sandboxes that did not start, or had no answering terminal once all were live."""

    live_sec: float
    """Wall-clock time until the last one showed its prompt."""

    first_prompt_p50_sec: float
    """From the start of one sandbox to its prompt, without the wait for its turn."""

    first_prompt_p99_sec: float
    answer_p50_ms: float
    """From a command to its output while all are live and all are asked at once."""

    answer_p99_ms: float
    lag_p50_ms: float
    """How late the event loop ran a timer, from the first start to the last close."""

    lag_p99_ms: float
    close_sec: float
    """Wall-clock time until all were closed."""

    host_mib: float
    """Each, in this process (PSS)."""

    below_mib: float
    """Each, in processes below this one (PSS)."""

    left: tuple[str, ...]
    """The counts that are higher after the last close than before the first start."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether none was lost and nothing is left."""
        return self.lost == 0 and not self.left


async def bench_scale(
    sandbox: str, *, sandboxes: int, starts_at_once: int = 16, options: Mapping[str, Any] | None = None
) -> ScaleReport:
    """Start sandboxes, hold all of them, ask each for one line, and close them.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        sandboxes: How many, beside a first one that is not counted.
        starts_at_once: How many start at the same time.
        options: Keyword arguments of the sandbox's class.

    Raises:
        HarborGymError: The first, uncounted sandbox failed.
    """
    with bench_task() as task_dir:
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, sandbox_options=dict(options or {}))
        first = _Member(config)
        await first.start()
        try:
            # Objects that are started once for the whole process are there before it counts.
            await _Fleet([_Member(config)], 1).run()
            await fill_executor()
            before = await asyncio.to_thread(take_holdings)
            fleet = _Fleet([_Member(config) for _ in range(sandboxes)], starts_at_once)
            report = await fleet.run()
            after = await asyncio.to_thread(take_settled_holdings, before)
        finally:
            await first.close()
        return report.finish(sandbox, starts_at_once, before, after)


class _Member:
    """One sandbox."""

    def __init__(self, config: TerminalEnvConfig) -> None:
        self._prepared = PreparedEpisode(config)
        self.ready_sec: float | None = None
        self.answer_sec: float | None = None

    async def start(self) -> None:
        started = time.perf_counter()
        await self._prepared.prepare()
        await self._prepared.first_screen()
        self.ready_sec = time.perf_counter() - started

    async def answer(self, number: int) -> None:
        started = time.perf_counter()
        turn = await self._prepared.terminal.run([Command(f"echo n{number}\n", _ECHO_SEC)])
        if f"n{number}" in turn.text:
            self.answer_sec = time.perf_counter() - started

    async def close(self) -> None:
        await self._prepared.close()


@dataclass(slots=True)
class _Measured:
    members: list[_Member]
    live_sec: float
    close_sec: float
    lags: list[float]
    live: Holdings

    def finish(self, sandbox: str, starts_at_once: int, before: Holdings, after: Holdings) -> ScaleReport:
        ready = [item.ready_sec for item in self.members if item.ready_sec is not None] or [0.0]
        answers = [item.answer_sec for item in self.members if item.answer_sec is not None] or [0.0]
        each = len(self.members) * _MIB
        return ScaleReport(
            env=sandbox,
            cpus=os.cpu_count() or 1,
            sandboxes=len(self.members),
            starts_at_once=starts_at_once,
            lost=sum(item.answer_sec is None for item in self.members),
            live_sec=round(self.live_sec, 3),
            first_prompt_p50_sec=round(percentile(ready, 50), 3),
            first_prompt_p99_sec=round(percentile(ready, 99), 3),
            answer_p50_ms=round(percentile(answers, 50) * 1000, 1),
            answer_p99_ms=round(percentile(answers, 99) * 1000, 1),
            lag_p50_ms=round(percentile(self.lags, 50) * 1000, 2),
            lag_p99_ms=round(percentile(self.lags, 99) * 1000, 2),
            close_sec=round(self.close_sec, 3),
            host_mib=round((self.live.host_bytes - before.host_bytes) / each, 3),
            below_mib=round((self.live.below_bytes - before.below_bytes) / each, 3),
            left=tuple(after.exceeds(before)),
        )


class _Fleet:
    """All of them."""

    def __init__(self, members: list[_Member], starts_at_once: int) -> None:
        self._members = members
        self._slots = asyncio.Semaphore(starts_at_once)

    async def run(self) -> _Measured:
        async with _lags() as lags:
            started = time.perf_counter()
            await self._each(self._start)
            live_sec = time.perf_counter() - started
            live = await asyncio.to_thread(take_holdings)
            await self._each(self._answer)
            closing = time.perf_counter()
            await self._each(self._close)
            close_sec = time.perf_counter() - closing
        return _Measured(self._members, live_sec, close_sec, lags, live)

    async def _each(self, act: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for number, member in enumerate(self._members):
                group.create_task(act(number, member))

    async def _start(self, number: int, member: _Member) -> None:
        async with self._slots:
            with contextlib.suppress(HarborGymError):  # counted as lost
                await member.start()

    async def _answer(self, number: int, member: _Member) -> None:
        if member.ready_sec is not None:
            with contextlib.suppress(HarborGymError):  # counted as lost
                await member.answer(number)

    async def _close(self, number: int, member: _Member) -> None:
        with contextlib.suppress(HarborGymError):  # its leftovers are counted
            await member.close()


@contextlib.asynccontextmanager
async def _lags() -> AsyncGenerator[list[float]]:
    """Yield how late the event loop runs timers, while the block runs."""
    lags: list[float] = []
    task = asyncio.create_task(watch_loop(lags))
    try:
        yield lags
    finally:
        task.cancel()
