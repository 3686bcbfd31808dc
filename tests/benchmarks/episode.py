"""Scripted episodes per minute in our environment, and in Harbor's own Terminus-2 session; their time by phase."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.procfs import read_stat
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError, SandboxError, VerifierError
from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid
from harbor_gym.types import Command
from tests.benchmarks.report import BenchReport
from tests.benchmarks.sandbox import bench_task
from tests.benchmarks.steps import HarborTerminal

SCRIPT: tuple[tuple[str, float], ...] = (
    ("ls /srv/bench/3\n", 1.0),
    ("mkdir -p /srv/out && cd /srv/out\n", 1.0),
    ("for i in 1 2 3; do echo line-$i; done > lines\n", 1.0),
    ("wc -l lines | tee count\n", 1.0),
    ("cat lines count\n", 1.0),
)
"""Five steps, one per turn: keystrokes, and the duration in seconds for Terminus-2."""

_TEST = """\
#!/bin/bash
if [ "$(wc -l < /srv/out/lines)" = 3 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

PHASES = ("reset", "step", "verdict", "close")
"""``step`` is a step of the script; ``verdict`` the last one, with clean-up, pristine view and verifier."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """The scripted episode in one implementation."""

    way: str
    episodes: int
    at_once: int
    failed: int
    """Episodes that failed or whose reward was not 1."""

    wall_sec: float
    per_minute: float
    median_sec: float
    """Seconds of one episode, from its start to the end of its clean-up, while others run."""

    host_cpu_ms: float
    """CPU time of this process per episode."""

    child_cpu_ms: float
    """CPU time of its children per episode: with ``local`` the sandboxes, with Docker only the client."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of the scripted episode. Values are means over its runs, except ``wall_ms``, a median."""

    phase: str
    times: int
    wall_ms: float
    host_cpu_ms: float
    """CPU time of this process."""

    machine_cpu_ms: float
    """CPU time of all processes of the machine, with the resolution of the kernel's ticks."""

    started: float
    """Processes and threads that started on the machine."""


@dataclass(frozen=True, slots=True)
class EpisodeReport(BenchReport):
    """The results of ``make bench ARGS=episode``."""

    env: str
    cpus: int
    rows: list[EpisodeRow]
    phases: list[PhaseRow] = field(default_factory=list[PhaseRow])
    """The phases of sequential episodes, if they were requested."""

    @property
    @override
    def is_right(self) -> bool:
        """Whether every episode got the expected verdict."""
        return not any(row.failed for row in self.rows)


async def bench_episode(
    sandbox: str, *, episodes: int, at_once: int, harbor_episodes: int, phase_episodes: int = 0
) -> EpisodeReport:
    """Run the scripted episode ``episodes`` times, ``at_once`` at a time, with reset, verifier and close.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        episodes: Episodes in our environment; one more before them is not counted.
        at_once: Concurrent episodes, in both implementations.
        harbor_episodes: Episodes in Harbor's session on Docker; 0 runs none.
        phase_episodes: Sequential episodes in our environment, to measure their phases; 0 runs none. Linux only.

    Raises:
        HarborGymError: The first, uncounted episode failed, or one whose phases are measured.
    """
    with bench_task() as task_dir:
        await asyncio.to_thread((task_dir / "tests" / "test.sh").write_text, _TEST)
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, confirm_task_complete=False)
        await _our_episode(config)
        rows = [await _measure(f"harbor_gym, {sandbox}", lambda: _our_episode(config), episodes, at_once)]
        if harbor_episodes:
            trials = task_dir.parent / "trials"
            await _harbor_episode(task_dir, trials)
            theirs = "Harbor's Terminus-2 session, docker"
            rows.append(await _measure(theirs, lambda: _harbor_episode(task_dir, trials), harbor_episodes, at_once))
        clock = PhaseClock()
        for _ in range(phase_episodes):
            await _our_episode(config, clock.time)
        return EpisodeReport(sandbox, os.cpu_count() or 1, rows, clock.rows())


async def _measure(way: str, episode: Callable[[], Awaitable[None]], episodes: int, at_once: int) -> EpisodeRow:
    seconds: list[float] = []
    failed = 0
    numbers = itertools.count()

    async def work() -> None:
        nonlocal failed
        while next(numbers) < episodes:
            started = time.perf_counter()
            try:
                await episode()
            except HarborGymError:
                failed += 1
            seconds.append(time.perf_counter() - started)

    started, before = time.perf_counter(), _cpu_sec()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, episodes)):
            group.create_task(work())
    wall, after = time.perf_counter() - started, _cpu_sec()
    host_ms, child_ms = ((end - start) / episodes * 1000 for start, end in zip(before, after, strict=True))
    return EpisodeRow(
        way=way,
        episodes=episodes,
        at_once=at_once,
        failed=failed,
        wall_sec=round(wall, 3),
        per_minute=round((episodes - failed) / wall * 60, 1),
        median_sec=round(sorted(seconds)[len(seconds) // 2], 3),
        host_cpu_ms=round(host_ms, 1),
        child_cpu_ms=round(child_ms, 1),
    )


def _cpu_sec() -> tuple[float, float]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime + _sandboxes_cpu_sec()


def _sandboxes_cpu_sec() -> float:
    """Return the CPU time of local sandboxes that have ended; they are children of the forkserver, which still runs."""
    if not (forkserver := forkserver_pid()):
        return 0.0
    stat = read_stat(forkserver)
    return stat.cpu_sec + stat.children_cpu_sec if stat else 0.0


# --- phases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counters:
    wall_sec: float
    host_cpu_sec: float
    machine_cpu_sec: float
    started: int

    @classmethod
    def read(cls) -> _Counters:
        lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines())
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, lines["cpu"].split())
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time.perf_counter(),
            own.ru_utime + own.ru_stime,
            (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"),
            int(lines["processes"]),
        )


class PhaseClock:
    """Collects each phase's samples. Linux only: it reads ``/proc/stat``."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[_Counters, _Counters]]] = {phase: [] for phase in PHASES}

    @contextlib.contextmanager
    def time(self, phase: str) -> Generator[None]:
        """Measure the block as one run of a phase."""
        before = _Counters.read()
        yield
        self._samples[phase].append((before, _Counters.read()))

    def rows(self) -> list[PhaseRow]:
        """Return one row per phase."""
        return [_phase_row(phase, samples) for phase, samples in self._samples.items() if samples]


def _phase_row(phase: str, samples: list[tuple[_Counters, _Counters]]) -> PhaseRow:
    return PhaseRow(
        phase,
        len(samples),
        round(statistics.median(after.wall_sec - before.wall_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.host_cpu_sec - before.host_cpu_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.machine_cpu_sec - before.machine_cpu_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.started - before.started for before, after in samples), 1),
    )


# --- ours ------------------------------------------------------------------------------------------------------------

_COMPLETE = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'


def _untimed(_phase: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


async def _our_episode(
    config: TerminalEnvConfig, timed: Callable[[str], contextlib.AbstractContextManager[None]] = _untimed
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        env = AsyncTerminalGymEnv(config)
        stack.push_async_callback(env.close)
        with timed("reset"):
            await env.reset()
        for command in SCRIPT:
            with timed("step"):
                await env.step([command])
        with timed("verdict"):
            _, reward, done, _ = await env.step(_COMPLETE)
        with timed("close"):
            await env.close()
    if not done or reward != 1.0:
        raise VerifierError(f"the scripted episode was judged {reward}, expected 1.0")


# --- Harbor's --------------------------------------------------------------------------------------------------------


class ScriptedTerminus(BaseAgent):
    """Plays the same script in Harbor's own terminal session, as Terminus-2 does."""

    @staticmethod
    @override
    def name() -> str:
        return "scripted-terminus"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        self._terminal = HarborTerminal(environment)
        await self._terminal.open()

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        for step in SCRIPT:
            await self._terminal.run([Command(*step)])
        await self._terminal.close()


async def _harbor_episode(task_dir: Path, trials_dir: Path) -> None:
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=trials_dir,
        agent=AgentConfig(import_path=f"{__name__}:ScriptedTerminus"),
        environment=EnvironmentConfig(type=EnvironmentType.DOCKER),
    )
    result = await (await Trial.create(config)).run()
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    if result.exception_info is not None or (rewards or {}).get("reward") != 1:
        why = result.exception_info.exception_message if result.exception_info else f"judged {rewards}"
        raise SandboxError(f"Harbor's scripted trial failed: {why}")


def format_episodes(report: EpisodeReport) -> str:
    """Return the report as a table for people."""
    head = ("way", "episodes", "at once", "failed", "a minute", "median s", "host CPU ms", "children's CPU ms")
    lines = [
        (
            *(row.way, str(row.episodes), str(row.at_once), str(row.failed), f"{row.per_minute:.1f}"),
            *(f"{row.median_sec:.2f}", f"{row.host_cpu_ms:.0f}", f"{row.child_cpu_ms:.0f}"),
        )
        for row in report.rows
    ]
    text = [plain_table(head, lines, right=range(1, len(head)))]
    if len(report.rows) > 1:
        text.append(f"\nours is {report.rows[0].per_minute / max(report.rows[1].per_minute, 1e-9):.1f} times Harbor's")
    if report.phases:
        text.append(f"\none episode after the other:\n{format_phases(report.phases)}")
    return "\n".join(line.rstrip() for line in text)


def format_phases(rows: list[PhaseRow]) -> str:
    """Return the rows as a table for people."""
    head = ("phase", "times", "wall ms", "host CPU ms", "machine's CPU ms", "started")
    lines = [
        (
            row.phase,
            str(row.times),
            *(f"{x:.1f}" for x in (row.wall_ms, row.host_cpu_ms, row.machine_cpu_ms, row.started)),
        )
        for row in rows
    ]
    return plain_table(head, lines, right=range(1, len(head)))
