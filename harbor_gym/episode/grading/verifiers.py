"""The sandboxes of separate verifiers, ahead of Harbor, which makes them after the policy's phase."""

from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import StepConfig
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_verifier_environment_definition
from harbor.trial.network_policy import resolve_trial_network_plan
from harbor.trial.trial import Trial

from harbor_gym._runtime.harbor_versions import network_settings
from harbor_gym.sandboxes.extensions import SupportsBuild
from harbor_gym.sandboxes.setup_command import OF_VERIFIERS


def require_separate_verifiers(trial: Trial) -> None:
    """Check before an episode whether its separate verifiers can run at all, which Harbor only checks after it.

    Raises:
        ValueError, RuntimeError, NotImplementedError, TaskError: The sandbox refuses the verifier; the text says why.
    """
    for step in trial.task.config.steps or [None]:
        _separate_verifier(trial, step)


async def build_for_verifier(trial: Trial, step: StepConfig | None) -> None:
    """Build the image of a step's separate verifier, if it has one, before Harbor counts the time of its start.

    Raises:
        HarborGymError: It can't be built.
    """
    if not isinstance(trial.agent_environment, SupportsBuild):  # the verifier's is of the same class
        return
    sandbox = _separate_verifier(trial, step)
    if isinstance(sandbox, SupportsBuild):
        try:
            await sandbox.build_image(force_build=False)
        finally:
            await sandbox.stop(delete=True)


def _separate_verifier(trial: Trial, step: StepConfig | None) -> BaseEnvironment | None:
    """Construct the sandbox of a step's separate verifier as Harbor will, without starting it."""
    config, task = trial.config, trial.task
    definition = resolve_verifier_environment_definition(task.config, task.paths, step)
    if definition is None:
        return None
    resolve: Any = resolve_trial_network_plan  # its settings differ by Harbor's version
    plan = resolve(
        task.config,
        *network_settings(config),
        step,
        verifier_mode=VerifierEnvironmentMode.SEPARATE,
        env_config=definition.config,
    )
    return EnvironmentFactory.create_environment_from_config(
        config=config.environment.model_copy(update={"extra_docker_compose": []}),
        environment_dir=definition.directory,
        environment_name=task.short_name,
        session_id=f"{config.trial_name}{OF_VERIFIERS}",
        trial_paths=trial.paths,
        task_env_config=definition.config,
        network_policy=plan.verifier_env_baseline,
        phase_network_policies=[plan.verifier_phase],
    )
