"""Check before an episode whether its separate verifiers can run at all, which Harbor only checks after it."""

from typing import Any

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_verifier_environment_definition
from harbor.trial.network_policy import resolve_trial_network_plan
from harbor.trial.trial import Trial

from harbor_gym._runtime.harbor_versions import network_settings


def require_separate_verifiers(trial: Trial) -> None:
    """Construct the sandbox of each separate verifier of a trial as Harbor will, without starting it.

    Raises:
        ValueError, RuntimeError, NotImplementedError, TaskError: The sandbox refuses the verifier; the text says why.
    """
    config, task = trial.config, trial.task
    resolve: Any = resolve_trial_network_plan  # its settings differ by Harbor's version
    for step in task.config.steps or [None]:
        definition = resolve_verifier_environment_definition(task.config, task.paths, step)
        if definition is None:
            continue
        plan = resolve(
            task.config,
            *network_settings(config),
            step,
            verifier_mode=VerifierEnvironmentMode.SEPARATE,
            env_config=definition.config,
        )
        EnvironmentFactory.create_environment_from_config(
            config=config.environment.model_copy(update={"extra_docker_compose": []}),
            environment_dir=definition.directory,
            environment_name=task.short_name,
            session_id=config.trial_name,
            trial_paths=trial.paths,
            task_env_config=definition.config,
            network_policy=plan.verifier_env_baseline,
            phase_network_policies=[plan.verifier_phase],
        )
