"""Check that a task can be solved and is not solved already: its oracle scores 1.0, doing nothing scores 0.0.

Both run Harbor's own way, as ``harbor run -a oracle`` and ``-a nop`` do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harbor_gym.errors import HarborGymError, TaskError, UsageError
from harbor_gym.rewards import scalar_reward

if TYPE_CHECKING:
    from harbor.models.trial.config import EnvironmentConfig
    from harbor.models.trial.result import TrialResult

type Agent = Literal["oracle", "nop"]

SOLVED = 1.0
"""What the oracle must score."""

UNSOLVED = 0.0
"""What doing nothing must score."""


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """The verdict on one task."""

    task: str
    """Name of the task's directory."""

    path: Path
    """The task's directory."""

    oracle: float | None
    """Reward of the task's own solution; None when it could not be graded."""

    nop: float | None
    """Reward for doing nothing; None when it could not be graded, or was not tried because the oracle failed to run."""

    seconds: float
    """Wall-clock time of both trials."""

    error: str | None = None
    """What kept a trial from being graded. An error is never a reward."""

    @property
    def ok(self) -> bool:
        """Tell whether the oracle solved the task and doing nothing did not."""
        return self.error is None and self.oracle == SOLVED and self.nop == UNSOLVED


def find_tasks(path: Path) -> list[Path]:
    """Return the task directories at ``path``: itself, or those directly inside it, by name.

    Raises:
        UsageError: There is no such directory, or no task in it.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; give a task directory or a directory of tasks")
    if (path / "task.toml").is_file():
        return [path.resolve()]
    tasks = sorted(child.resolve() for child in path.iterdir() if (child / "task.toml").is_file())
    if not tasks:
        raise UsageError(f"{path} holds no task.toml, nor does any directory directly inside it")
    return tasks


async def check_tasks(
    tasks: list[Path], *, environment: EnvironmentConfig, trials_dir: Path | None = None
) -> AsyncIterator[TaskCheck]:
    """Check tasks one after the other and yield each verdict when it is there.

    Args:
        tasks: Task directories, as :func:`find_tasks` returns them.
        environment: The sandbox, as :func:`harbor_gym.sandboxes.environment_config` returns it.
        trials_dir: Keep the trials' folders here. None: a temporary directory, removed at the end.
    """
    if trials_dir is not None:
        for task in tasks:
            yield await check_task(task, environment=environment, trials_dir=trials_dir)
        return
    with tempfile.TemporaryDirectory(prefix="harbor-gym-check-", ignore_cleanup_errors=True) as temporary:
        for task in tasks:
            yield await check_task(task, environment=environment, trials_dir=Path(temporary))


async def check_task(task_dir: Path, *, environment: EnvironmentConfig, trials_dir: Path) -> TaskCheck:
    """Run the oracle and the do-nothing agent on one task.

    Never raises for what is wrong with the task or the sandbox: that is the verdict's ``error``.

    Args:
        task_dir: The task's directory.
        environment: The sandbox.
        trials_dir: Directory for the two trials' folders; the caller owns it.
    """
    started = time.monotonic()
    rewards: dict[Agent, float] = {}
    error: str | None = None
    agents: tuple[Agent, ...] = ("oracle", "nop")
    for agent in agents:
        try:
            rewards[agent] = await run_agent(task_dir, agent, environment=environment, trials_dir=trials_dir)
        except HarborGymError as exc:
            error = f"{agent}: {exc}"
            break
    return TaskCheck(
        task=task_dir.name,
        path=task_dir,
        oracle=rewards.get("oracle"),
        nop=rewards.get("nop"),
        seconds=time.monotonic() - started,
        error=error,
    )


async def run_agent(task_dir: Path, agent: Agent, *, environment: EnvironmentConfig, trials_dir: Path) -> float:
    """Run one of Harbor's built-in agents on a task and return its reward.

    Args:
        task_dir: The task's directory.
        agent: ``oracle`` runs the task's solution, ``nop`` does nothing.
        environment: The sandbox.
        trials_dir: Directory for the trial's folder.

    Raises:
        TaskError: The directory is not a usable task, or its sandbox kind refuses it.
        SandboxError: The sandbox did not start or went away.
        VerifierError: There was no verdict, or no single reward in it.
    """
    from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    from harbor_gym.episode.task import load_task

    await load_task(task_dir)
    if agent == "oracle" and not _has_solution(task_dir):
        raise TaskError(f"task directory {task_dir} has no solution/ that the oracle could run")
    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=trials_dir,
        agent=AgentConfig(name=agent),
        environment=environment,
    )
    try:
        trial = await Trial.create(config)
    except (ImportError, OSError, TypeError, ValueError, RuntimeError, NotImplementedError) as exc:
        # Harbor's constructors refuse a task that the sandbox cannot hold; nothing has been started yet.
        raise TaskError(f"task {task_dir.name!r} can't run in this sandbox: {exc}") from exc
    return _reward(await trial.run())


def _has_solution(task_dir: Path) -> bool:
    return (task_dir / "solution").is_dir() or any(task_dir.glob("steps/*/solution"))


def _reward(result: TrialResult) -> float:
    from harbor_gym.episode.failures import grading_failure, start_failure

    if result.verifier_result is None or result.verifier_result.rewards is None:
        if result.agent_execution is None and not result.step_results:
            raise start_failure(result)
        raise grading_failure(result, result.exception_info)
    return scalar_reward(result.verifier_result.rewards)
