"""Apptainer sandboxes for tests, made without a trial around them."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from tests.helpers.sandboxes.local import DOCKERFILE


def make_sandbox(directory: Path, *, dockerfile: str | None = DOCKERFILE, **options: Any) -> ApptainerEnvironment:
    """Make a sandbox with a build context in ``directory``, not yet started.

    ``config`` among the options is the task's ``[environment]``; the rest goes to the constructor. Without a policy of
    its own it has no network.
    """
    context = directory / "environment"
    context.mkdir(parents=True, exist_ok=True)
    if dockerfile is not None:
        (context / "Dockerfile").write_text(dockerfile)
    config = options.pop("config", {})
    options.setdefault("network_policy", NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
    return ApptainerEnvironment(
        environment_dir=context,
        environment_name="test",
        session_id="test__env",
        trial_paths=TrialPaths(directory / "trial"),
        task_env_config=EnvironmentConfig(**config),
        **options,
    )


@contextlib.asynccontextmanager
async def running(sandbox: ApptainerEnvironment) -> AsyncGenerator[ApptainerEnvironment]:
    """Start a sandbox and stop it at the end."""
    try:
        await sandbox.start(force_build=False)
        yield sandbox
    finally:
        await sandbox.stop(delete=True)
