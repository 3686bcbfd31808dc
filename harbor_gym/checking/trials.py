"""Run one of Harbor's own agents on a task, as ``harbor run`` does."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harbor_gym.checking.verdict import CheckPlan, PhaseSeconds
from harbor_gym.errors import TaskError
from harbor_gym.rewards import scalar_reward

if TYPE_CHECKING:
    from harbor.models.trial.result import TimingInfo, TrialResult

type Agent = Literal["oracle", "nop"]


class RefusedError(TaskError):
    """The sandbox does not take this task, which nothing is wrong with as far as is known."""


async def run_agent(task_dir: Path, agent: Agent, plan: CheckPlan) -> tuple[float, PhaseSeconds]:
    """Return the reward of one of Harbor's built-in agents, and where the time went.

    Args:
        task_dir: The directory of a well-formed task.
        agent: ``oracle`` runs the task's solution, ``nop`` does nothing.
        plan: The sandbox and where to keep the trial's folder.

    Raises:
        RefusedError: The sandbox does not take this task.
        SandboxError: The sandbox did not start or went away.
        VerifierError: There was no verdict, or no single reward in it.
    """
    from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    from harbor_gym.episode.verifiers import require_separate_verifiers

    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=plan.trials_dir,
        agent=AgentConfig(name=agent),
        environment=plan.environment,
    )
    try:
        trial = await Trial.create(config)
        require_separate_verifiers(trial)
    except (ImportError, OSError, TypeError, ValueError, RuntimeError, NotImplementedError, TaskError) as exc:
        # Harbor's constructors refuse a task that the sandbox cannot hold; nothing has been started yet.
        raise RefusedError(f"task {task_dir.name!r} can't run in this sandbox: {exc}") from exc
    result = await trial.run()
    return _reward(result), _phases(result)


def _reward(result: TrialResult) -> float:
    from harbor_gym.episode.failures import grading_failure, start_failure

    if result.verifier_result is None or result.verifier_result.rewards is None:
        if result.agent_execution is None and not result.step_results:
            failure = start_failure(result)
            raise RefusedError(str(failure)) if isinstance(failure, TaskError) else failure
        raise grading_failure(result, result.exception_info)
    return scalar_reward(result.verifier_result.rewards)


def _phases(result: TrialResult) -> PhaseSeconds:
    parts = result.step_results or [result]
    verifiers = [part.verifier for part in parts if part.verifier is not None]
    ends = [timing.finished_at for timing in verifiers if timing.finished_at is not None]
    return PhaseSeconds(
        start=_between(result.started_at, _first_agent_start(result)),
        agent=sum(_seconds(part.agent_execution) for part in parts),
        verify=sum(map(_seconds, verifiers)),
        stop=_between(max(ends, default=None), result.finished_at),
    )


def _first_agent_start(result: TrialResult) -> datetime | None:
    first = result.step_results[0] if result.step_results else result
    return first.agent_execution.started_at if first.agent_execution is not None else None


def _seconds(timing: TimingInfo | None) -> float:
    return _between(timing.started_at, timing.finished_at) if timing is not None else 0.0


def _between(start: datetime | None, end: datetime | None) -> float:
    return max(0.0, (end - start).total_seconds()) if start is not None and end is not None else 0.0
