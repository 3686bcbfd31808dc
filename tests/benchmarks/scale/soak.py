"""Thousands of episodes, with failures thrown in: is each accounted for, and is the process flat at the end?"""

import asyncio
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import classify
from tests.benchmarks.report import BenchReport
from tests.benchmarks.sandbox import bench_task
from tests.benchmarks.scale.holdings import Holdings, fill_executor, take_holdings, take_settled_holdings

_SAMPLES = 10
_FAKE = "harbor_gym.testing:FakeEnvironment"
_CANCEL_WITHIN_SEC = 0.5
_STORAGE_MB = 64
"""Small, so that a full disk is little memory."""

_FILL_DISK = "head -c 1G /dev/zero > /fill\n"
_KILL_SANDBOX = "kill -9 -1\n"


class Trouble(StrEnum):
    """A treatment of an episode."""

    NONE = "none"
    CANCELLED = "cancelled"
    """Its task is cancelled at a random moment."""

    KILLED = "killed"
    """Every process that the policy may kill is killed; a fake is lost."""

    FULL_DISK = "full_disk"
    """The policy writes until nothing more fits; a fake's verifier then writes no reward."""


@dataclass(frozen=True, slots=True)
class SoakReport(BenchReport):
    """The results of ``make bench ARGS=soak``."""

    env: str
    episodes: int
    at_once: int
    wall_sec: float
    outcomes: dict[str, int]
    """An episode's treatment, and its outcome → how many."""

    unaccounted: int
    """Episodes without an outcome."""

    samples: list[dict[str, int]]
    """The process's resources at tenths of the run; the first after the first tenth."""

    left: tuple[str, ...]
    """The counts that are higher after the last episode than before the first counted one."""

    growth_kib: float
    """The growth of this process's memory from the first tenth to the end, per episode in between."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every episode is accounted for and nothing is left."""
        return self.unaccounted == 0 and not self.left


async def bench_soak(
    sandbox: str,
    *,
    episodes: int,
    at_once: int = 16,
    trouble_share: float = 0.1,
    seed: int = 0,
    on_progress: Callable[[int], object] | None = None,
) -> SoakReport:
    """Run short episodes, and trouble some of them.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name; failures of a fake are its own.
        episodes: How many, beside ``at_once`` first ones that are not counted.
        at_once: How many at the same time.
        trouble_share: Share of the episodes that something is done to, in [0, 1].
        seed: Chooses them.
        on_progress: Called with the number of ended episodes after each.

    Raises:
        HarborGymError: A first, uncounted episode failed.
    """
    with bench_task() as task_dir:
        await asyncio.to_thread(_limit_storage, task_dir / "task.toml")
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, confirm_task_complete=False)
        soak = _Soak(config, random.Random(seed), trouble_share, on_progress)
        await soak.warm_up(at_once)
        return await soak.run(episodes, at_once)


def _limit_storage(declaration: Path) -> None:
    with declaration.open("a", encoding="utf-8") as file:
        file.write(f"[environment]\nstorage_mb = {_STORAGE_MB}\n")


class _Soak:
    def __init__(
        self,
        config: TerminalEnvConfig,
        chance: random.Random,
        trouble_share: float,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        self._config, self._chance, self._share = config, chance, trouble_share
        self._on_progress = on_progress
        self._outcomes: Counter[str] = Counter()
        self._samples: list[Holdings] = []

    async def warm_up(self, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._episode(Trouble.NONE))

    async def run(self, episodes: int, at_once: int) -> SoakReport:
        await fill_executor()
        before = await asyncio.to_thread(take_holdings)
        started = time.perf_counter()
        plan = [self._choose() for _ in range(episodes)]
        tenth = max(1, episodes // _SAMPLES)
        for first in range(0, episodes, tenth):
            await self._part(plan[first : first + tenth], at_once)
            self._samples.append(await asyncio.to_thread(take_holdings))
        self._samples[-1] = await asyncio.to_thread(take_settled_holdings, before)
        wall_sec = time.perf_counter() - started
        early, late = self._samples[0], self._samples[-1]
        between = max(1, episodes - tenth)
        return SoakReport(
            env=self._config.sandbox,
            episodes=episodes,
            at_once=at_once,
            wall_sec=round(wall_sec, 1),
            outcomes=dict(sorted(self._outcomes.items())),
            unaccounted=episodes - self._outcomes.total(),
            samples=[dataclasses.asdict(item) for item in self._samples],
            left=tuple(late.exceeds(before)),
            growth_kib=round((late.host_bytes - early.host_bytes) / 1024 / between, 4),
        )

    def _choose(self) -> Trouble:
        if self._chance.random() >= self._share:
            return Trouble.NONE
        return self._chance.choice([Trouble.CANCELLED, Trouble.KILLED, Trouble.FULL_DISK])

    async def _part(self, plan: list[Trouble], at_once: int) -> None:
        slots = asyncio.Semaphore(at_once)

        async def play_one(trouble: Trouble) -> None:
            async with slots:
                outcome = await self._accounted(trouble)
            self._outcomes[f"{trouble.value}: {outcome}"] += 1
            if self._on_progress is not None:
                self._on_progress(self._outcomes.total())

        async with asyncio.TaskGroup() as group:
            for trouble in plan:
                group.create_task(play_one(trouble))

    async def _accounted(self, trouble: Trouble) -> str:
        """Return one word for an episode's outcome."""
        task = asyncio.create_task(self._episode(trouble))
        if trouble is Trouble.CANCELLED:
            asyncio.get_running_loop().call_later(self._chance.uniform(0, _CANCEL_WITHIN_SEC), task.cancel)
        try:
            return await task
        except HarborGymError as exc:
            return classify(exc).failure_kind
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return "cancelled"

    async def _episode(self, trouble: Trouble) -> str:
        async with AsyncTerminalGymEnv(self._troubled(trouble)) as env:
            await env.reset()
            result = await env.step([(self._keys(trouble), 5.0)])
            if not result.done:
                result = await env.finish()
            return result.info.get("end_reason", "none")

    def _troubled(self, trouble: Trouble) -> TerminalEnvConfig:
        points = {Trouble.KILLED: {"exec": 1}, Trouble.FULL_DISK: {"verifier": 1}}
        if self._config.sandbox != _FAKE or trouble not in points:
            return self._config
        return self._config.model_copy(update={"sandbox_options": {"fail": points[trouble]}})

    def _keys(self, trouble: Trouble) -> str:
        if self._config.sandbox == _FAKE:
            return "echo hello\n"
        return {Trouble.KILLED: _KILL_SANDBOX, Trouble.FULL_DISK: _FILL_DISK}.get(trouble, "echo hello\n")


def format_soak(report: SoakReport) -> str:
    """Return the report for people."""
    names = ("env", "episodes", "at_once", "wall_sec", "unaccounted")
    rows = [
        *((name, str(getattr(report, name))) for name in names),
        *((f"  {name}", str(count)) for name, count in report.outcomes.items()),
        ("growth", f"{report.growth_kib:g} KiB an episode"),
        ("left", ", ".join(report.left) or "none"),
    ]
    return plain_table((), rows)
