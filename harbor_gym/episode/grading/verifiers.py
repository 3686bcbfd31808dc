"""Check before an episode whether its separate verifiers can run at all: Harbor checks after it."""

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_verifier_environment_definition
from harbor.trial.network_policy import resolve_trial_network_plan
from harbor.trial.trial import Trial


def require_separate_verifiers(trial: Trial) -> None:
    """Make the sandbox of each separate verifier of a trial as Harbor will, start none, and drop it.

    Raises:
        ValueError, RuntimeError, NotImplementedError, TaskError: What the sandbox refuses, in its own words.
    """
    config, task = trial.config, trial.task
    for step in task.config.steps or [None]:
        definition = resolve_verifier_environment_definition(task.config, task.paths, step)
        if definition is None:
            continue
        separate = VerifierEnvironmentMode.SEPARATE
        plan = resolve_trial_network_plan(
            task.config,
            config.agent,
            config.environment,
            step,
            verifier_mode=separate,
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
