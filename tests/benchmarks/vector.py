"""One vector environment beside a single one: what does a step of all cost, and what does each pay of it?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import override

from harbor_gym.adapters.gymnasium import HarborTerminalVectorEnv
from tests.benchmarks.report import BenchReport, percentile
from tests.benchmarks.sandbox import bench_task

_SLEEP = "sleep 0.3; echo slept-{number}\n"
_LS = "ls /srv/bench/{number}\n"


@dataclass(frozen=True, slots=True)
class VectorReport(BenchReport):
    """The results of ``make bench ARGS=vector``. Times are medians of wall-clock time."""

    env: str
    num_envs: int
    repeat: int
    reset_sec: float
    """All resets, side by side."""

    sleep_one_ms: float
    sleep_all_ms: float
    sleep_ratio: float
    """Of the two before: how much longer all take than one."""

    ls_one_ms: float
    ls_all_ms: float
    ls_share: float
    """One environment's share of a step of all, in steps of a single environment."""

    wrong: int
    """Observations that lacked the command's output."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every observation was right."""
        return self.wrong == 0


def bench_vector(sandbox: str, *, num_envs: int, repeat: int) -> VectorReport:
    """Step ``num_envs`` sandboxes and one more, taking turns, with a command that sleeps and with ``ls``.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        num_envs: How many at once.
        repeat: Times that each kind of step is taken.

    Raises:
        SandboxStartError: A sandbox did not start.
    """
    with bench_task() as task_dir:
        item, all_ = (
            HarborTerminalVectorEnv(count, task_dir, sandbox=sandbox, max_turns=None, time_limit_sec=86_400)
            for count in (1, num_envs)
        )
        try:
            item.reset()
            started = time.perf_counter()
            all_.reset()
            reset_sec = time.perf_counter() - started
            wrong = sum(_step(env, command)[1] for env in (item, all_) for command in (_LS, _SLEEP))  # warms up
            times: dict[tuple[str, int], list[float]] = {}
            for command in [_SLEEP, _LS] * repeat:
                for env in (item, all_):
                    seconds, missed = _step(env, command)
                    times.setdefault((command, env.num_envs), []).append(seconds)
                    wrong += missed
        finally:
            item.close()
            all_.close()
    medians = {key: percentile(seconds, 50) * 1000 for key, seconds in times.items()}
    return VectorReport(
        env=sandbox,
        num_envs=num_envs,
        repeat=repeat,
        reset_sec=round(reset_sec, 3),
        sleep_one_ms=round(medians[_SLEEP, 1], 1),
        sleep_all_ms=round(medians[_SLEEP, num_envs], 1),
        sleep_ratio=round(medians[_SLEEP, num_envs] / medians[_SLEEP, 1], 2),
        ls_one_ms=round(medians[_LS, 1], 1),
        ls_all_ms=round(medians[_LS, num_envs], 1),
        ls_share=round(medians[_LS, num_envs] / num_envs / medians[_LS, 1], 2),
        wrong=wrong,
    )


def _step(env: HarborTerminalVectorEnv, command: str) -> tuple[float, int]:
    """Return the seconds that a step of all took, and how many observations were wrong."""
    started = time.perf_counter()
    observations, *_ = env.step([command.format(number=number) for number in range(env.num_envs)])
    seconds = time.perf_counter() - started
    expected = (f"slept-{number}" if command is _SLEEP else f"alpha-{number}.txt" for number in range(env.num_envs))
    return seconds, sum(
        f"\n{text}" not in observation for text, observation in zip(expected, observations, strict=True)
    )
