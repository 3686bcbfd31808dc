"""Run a task's solution once as ``harbor run`` does, to compare it with an episode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.play import last_lines
from harbor_gym.errors import HarborGymError, TaskUnsupportedError

if TYPE_CHECKING:
    from harbor.models.trial.result import TrialResult
    from harbor.trial.trial import Trial


async def run_plain_oracle(task_dir: Path, plan: CheckPlan) -> tuple[float, str]:
    """Return the reward of the task's solution in Harbor's own trial, and the end of the verifier's output.

    The trial has none of an episode's additions but that its image is built before the limit of its start begins.

    Args:
        task_dir: The directory of a well-formed task.
        plan: The sandbox, the reward's name, and the folder for the trial.

    Raises:
        TaskError: The task is malformed, or can't run in the sandbox.
        SandboxError: The sandbox did not start or went away.
        VerifierError: There was no verdict, or no single reward in it.
    """
    from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig

    from harbor_gym.episode._harbor_patches import build_before_start, create_trial
    from harbor_gym.episode.grading.verifiers import require_separate_verifiers

    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=Path(plan.trials_dir),
        agent=AgentConfig(name="oracle"),
        environment=plan.environment,
    )
    try:
        trial = await create_trial(config, task_dir)
        build_before_start(trial)
        require_separate_verifiers(trial)
    except (ImportError, OSError, TypeError, ValueError, RuntimeError, NotImplementedError) as exc:
        # Harbor's constructors refuse a task that the sandbox cannot hold; nothing has been started yet.
        raise TaskUnsupportedError(f"task {task_dir.name!r} can't run in this sandbox: {exc}") from exc
    return _graded(trial, await trial.run(), plan)


def _graded(trial: Trial, result: TrialResult, plan: CheckPlan) -> tuple[float, str]:
    from harbor_gym.episode.diagnostics import read_diagnostics

    failure, verdict = _failure(result), result.verifier_result
    diagnostics = read_diagnostics(trial.paths.trial_dir)
    if failure is not None:
        raise failure.attach(diagnostics, trial_dir=None)
    assert verdict is not None
    assert verdict.rewards is not None
    return plan.scalar(verdict.rewards), last_lines(diagnostics.get("verifier_output", ""))


def _failure(result: TrialResult) -> HarborGymError | None:
    from harbor_gym.episode.failures import denied_verdict, grading_failure, start_failure

    if result.verifier_result is not None and result.verifier_result.rewards is not None:
        return denied_verdict(result)
    if result.agent_execution is not None or result.step_results:
        return grading_failure(result, result.exception_info)
    return start_failure(result)
