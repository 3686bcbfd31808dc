"""Sandboxes for tests, made without a trial around them: local ones, if no other kind is named."""

import contextlib
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.sandboxes.local.environment import LocalEnvironment

DOCKERFILE = """\
FROM debian:bookworm-slim
ENV GREETING="hello world"
RUN useradd --create-home --uid 1234 --shell /bin/bash dev && groupadd --gid 4321 crew && usermod -aG crew dev
WORKDIR /app
"""


def make_sandbox(directory: Path, *, dockerfile: str = DOCKERFILE, **options: Any) -> LocalEnvironment:
    """Make a local sandbox, as :func:`make` does."""
    return make(LocalEnvironment, directory, dockerfile, **options)


def make[T: BaseEnvironment](kind: type[T], directory: Path, dockerfile: str | None, **options: Any) -> T:
    """Make a sandbox with a build context in ``directory``, of one file or none, not yet started.

    ``config`` among the options is the task's ``[environment]``; the rest goes to the constructor. Without a policy of
    its own it has no network.
    """
    context = directory / "environment"
    context.mkdir(parents=True, exist_ok=True)
    if dockerfile is not None:
        (context / "Dockerfile").write_text(dockerfile)
    config = options.pop("config", {})
    options.setdefault("network_policy", NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
    return kind(
        environment_dir=context,
        environment_name="test",
        # Docker's names are the machine's, on which other tests run at the same time.
        session_id="test__env" if issubclass(kind, LocalEnvironment) else f"test__{secrets.token_hex(4)}",
        trial_paths=TrialPaths(directory / "trial"),
        task_env_config=EnvironmentConfig(**config),
        **options,
    )


@contextlib.asynccontextmanager
async def running[T: BaseEnvironment](sandbox: T) -> AsyncGenerator[T]:
    """Start a sandbox and stop it at the end."""
    try:
        await sandbox.start(force_build=False)
        yield sandbox
    finally:
        await sandbox.stop(delete=True)


async def output(sandbox: BaseEnvironment, command: str, **options: Any) -> str:
    """Run a command that must succeed, and return its stripped output."""
    result = await sandbox.exec(command, **options)
    assert result.return_code == 0, f"{command!r}: status {result.return_code}: {result.stderr}"
    return (result.stdout or "").strip()


def make_env(task_dir: Path, *, sandbox: str = "local", **settings: Any) -> AsyncTerminalGymEnv:
    """Make an environment that asks for no confirmation."""
    return AsyncTerminalGymEnv(
        TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, confirm_task_complete=False, **settings)
    )
