"""A training step as ``GRPOTrainer`` makes it: resets in a loop, tool calls in a loop, one call for all rewards."""

import asyncio
import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.adapters.trl import HarborSpec, verified_reward
from harbor_gym.errors import HarborGymError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.benchmarks.report import BenchReport
from tests.benchmarks.sandbox import bench_task

OURS, POOLED, THEIRS = "harbor_gym", "harbor_gym, pool", "trl.experimental.harbor"
COMMANDS = ("echo done > /srv/answer", "ls /srv")
"""One tool call each, of every environment."""

_TEST = '#!/bin/bash\n[ "$(cat /srv/answer)" = done ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
_ANSWERED = [{"role": "assistant", "content": "done"}]
_REFILL_SEC = 30.0
"""Longest time that generation and the optimizer's step are taken to last, in which a pool refills."""


class DelayedLocal(LocalEnvironment):
    """A local sandbox that takes longer to start, as a cloud's does.

    Args:
        args: The local sandbox's.
        start_delay_sec: Seconds by which each start is longer.
        kwargs: The local sandbox's.
    """

    def __init__(self, *args: Any, start_delay_sec: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._start_delay_sec = start_delay_sec

    @override
    async def start(self, force_build: bool) -> None:
        await asyncio.sleep(self._start_delay_sec)
        await super().start(force_build)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The seconds of one step's phases."""

    module: str
    resets_sec: float
    first_tools_sec: float
    """Of one tool call of each environment."""

    second_tools_sec: float
    rewards_sec: float
    mean_reward: float

    @property
    def whole_sec(self) -> float:
        """The step's."""
        return self.resets_sec + self.first_tools_sec + self.second_tools_sec + self.rewards_sec


@dataclass(frozen=True, slots=True)
class TrlReport(BenchReport):
    """The results."""

    slots: int
    start_delay_sec: float
    rows: tuple[PhaseRow, ...]

    @property
    def ratio(self) -> float:
        """How many times as long TRL's own step is as ours with a pool."""
        seconds = {row.module: row.whole_sec for row in self.rows}
        return seconds[THEIRS] / seconds[POOLED]

    @override
    def as_object(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def bench_step(*, slots: int = 16, start_delay_sec: float = 2.0) -> TrlReport:
    """Time one step of each module in local sandboxes, one after the other, each after a step that is not counted.

    Args:
        slots: Environments of the step.
        start_delay_sec: Seconds by which each sandbox starts later than a local one does.

    Raises:
        HarborGymError: A module's step did not earn full reward: its time would count for nothing.
    """
    with bench_task() as task:
        (task / "tests/test.sh").write_text(_TEST)
        rows = (
            _ours(task, slots, start_delay_sec, pool_size=None),
            _ours(task, slots, start_delay_sec, pool_size=slots),
            _theirs(task, slots, start_delay_sec),
        )
    for row in rows:
        if row.mean_reward != 1.0:
            raise HarborGymError(f"{row.module}: the mean reward is {row.mean_reward:g} instead of 1")
    return TrlReport(slots, start_delay_sec, rows)


def format_step(report: TrlReport) -> str:
    """Return the report as text."""
    head = ("module", "resets", "first tools", "second tools", "rewards", "whole step")
    rows = [
        (
            row.module,
            *(
                f"{seconds:.2f} s"
                for seconds in (
                    row.resets_sec,
                    row.first_tools_sec,
                    row.second_tools_sec,
                    row.rewards_sec,
                    row.whole_sec,
                )
            ),
        )
        for row in report.rows
    ]
    title = f"{report.slots} local sandboxes that start {report.start_delay_sec:g} s later"
    return f"{title}\n{plain_table(head, rows, right=range(1, 6))}\nTRL's own / ours with a pool: {report.ratio:.1f}"


def _ours(task: Path, slots: int, start_delay_sec: float, *, pool_size: int | None) -> PhaseRow:
    with HarborSpec(
        task,
        agent="bash",
        sandbox=f"{DelayedLocal.__module__}:{DelayedLocal.__name__}",
        sandbox_options={"start_delay_sec": start_delay_sec},
        pool_size=pool_size,
    ) as spec:
        environments: list[Any] = [spec.environment_factory() for _ in range(slots)]

        def reward() -> list[float | None]:
            return verified_reward([_ANSWERED] * slots, environments)

        name = OURS if pool_size is None else POOLED
        _step(name, environments, {"task_index": 0}, reward)
        if pool_size is not None:
            time.sleep(start_delay_sec + min(_REFILL_SEC, slots / 4))
        return _step(name, environments, {"task_index": 0}, reward)


def _theirs(task: Path, slots: int, start_delay_sec: float) -> PhaseRow:
    from trl.experimental.harbor import HarborBashEnv

    with _all_delayed(start_delay_sec):
        environments = [HarborBashEnv() for _ in range(slots)]
        _, row = [
            _step(
                THEIRS,
                environments,
                {"task_dir": str(task)},
                lambda: [environment.reward for environment in environments],
            )
            for _ in range(2)
        ]
        environments.clear()
        gc.collect()  # it stops a sandbox when its object is garbage, and nowhere else
    return row


def _step(
    name: str, environments: Sequence[Any], row: dict[str, Any], rewards: Callable[[], Sequence[float | None]]
) -> PhaseRow:
    times = [time.monotonic()]
    for environment in environments:
        environment.reset(**row)
    times.append(time.monotonic())
    for command in COMMANDS:
        for environment in environments:
            environment.bash(command)
        times.append(time.monotonic())
    found = [reward or 0.0 for reward in rewards()]
    times.append(time.monotonic())
    resets, first_tools, second_tools, verdicts = (after - before for before, after in itertools.pairwise(times))
    return PhaseRow(name, resets, first_tools, second_tools, verdicts, sum(found) / len(found))


@contextlib.contextmanager
def _all_delayed(start_delay_sec: float) -> Generator[None]:
    """Make Harbor's factory create the same sandboxes for TRL's module, which names them by a type of Harbor's only."""
    from harbor.environments.factory import EnvironmentFactory

    made = EnvironmentFactory.create_environment_from_config

    def make(*args: Any, config: Any, **kwargs: Any) -> Any:
        path = f"{DelayedLocal.__module__}:{DelayedLocal.__name__}"
        changes = {"type": None, "import_path": path, "kwargs": {"start_delay_sec": start_delay_sec}}
        return made(*args, config=config.model_copy(update=changes), **kwargs)

    EnvironmentFactory.create_environment_from_config = staticmethod(make)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        EnvironmentFactory.create_environment_from_config = made
