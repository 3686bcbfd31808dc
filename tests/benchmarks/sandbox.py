"""Sandboxes for benchmarks: Harbor's environments, started without a trial."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import HarborGymError, SandboxStartError
from harbor_gym.sandboxes import environment_config

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig

_STOP_TIMEOUT_SEC = 120.0

PROMPT = "bench$"
"""The shell's prompt in every benchmarked sandbox."""

LISTINGS = 100
"""Directories /srv/bench/0 … /srv/bench/99, each with two files named after it."""

# An image that has the tools needs no network; others get the tools from Debian.
BENCH_DOCKERFILE = f"""\
FROM debian:bookworm-slim
RUN {{ command -v tmux && command -v vi && command -v python3; }} >/dev/null \\
    || {{ apt-get update && apt-get install -y --no-install-recommends tmux vim-tiny python3 procps; }}
RUN echo "PS1='{PROMPT} '" | tee ~/.bashrc >~/.profile \\
    && for i in $(seq 0 {LISTINGS - 1}); do \\
        mkdir -p /srv/bench/$i && touch /srv/bench/$i/alpha-$i.txt /srv/bench/$i/beta-$i.txt; done
WORKDIR /srv
"""
"""The Dockerfile of the benchmarks' image."""


def write_bench_task(task_dir: Path) -> Path:
    """Write the task with the benchmarks' image; return its directory."""
    for folder in ("environment", "tests"):
        (task_dir / folder).mkdir(parents=True)
    (task_dir / "task.toml").write_text('schema_version = "1.4"\n[task]\nname = "harbor-gym/bench"\n', encoding="utf-8")
    (task_dir / "instruction.md").write_text("Nothing is asked: this task is measured, not solved.\n", encoding="utf-8")
    test = task_dir / "tests" / "test.sh"
    test.write_text("#!/bin/sh\necho 0 >/logs/verifier/reward.txt\n", encoding="utf-8")
    test.chmod(0o755)
    (task_dir / "environment" / "Dockerfile").write_text(BENCH_DOCKERFILE, encoding="utf-8")
    return task_dir


@contextmanager
def bench_task() -> Generator[Path]:
    """Yield the directory of :func:`write_bench_task`'s task, in a temporary folder that the block's end removes."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bench")) as folder:
        yield write_bench_task(Path(folder) / "task")


@asynccontextmanager
async def started_environment(
    sandbox: str, task_dir: Path | None = None, *, options: Mapping[str, Any] | None = None
) -> AsyncGenerator[BaseEnvironment]:
    """Start one sandbox without a trial; stop and delete it at the end.

    Args:
        sandbox: A name as in :func:`harbor_gym.sandboxes.environment_config`.
        task_dir: The task with the sandbox's image; None is the benchmarks' own task.
        options: Keyword arguments for the sandbox's class.

    Raises:
        UsageError: There is no sandbox of that name.
        SandboxStartError: The sandbox could not be made or started.
    """
    config = environment_config(sandbox, options=options)
    temporary = await asyncio.to_thread(
        tempfile.TemporaryDirectory, prefix=temporary_prefix("bench"), ignore_cleanup_errors=True
    )
    environment = None
    try:
        try:
            environment = await asyncio.to_thread(_create, config, task_dir, Path(temporary.name))
            await environment.start(force_build=False)
        except HarborGymError:
            raise
        except Exception as exc:  # The boundary to Harbor: each kind of sandbox raises its client's exceptions.
            raise SandboxStartError(
                f"Sandbox {sandbox!r} did not start for a benchmark: {type(exc).__name__}: {str(exc).rstrip('.')}. "
                f"`harbor-gym check` on a task of your own with --env {sandbox} checks whether it works at all."
            ) from exc
        yield environment
    finally:
        try:
            if environment is not None:
                async with asyncio.timeout(_STOP_TIMEOUT_SEC):
                    await environment.stop(delete=True)
        finally:
            await asyncio.to_thread(temporary.cleanup)


def _create(config: TrialEnvironmentConfig, task_dir: Path | None, temporary: Path) -> BaseEnvironment:
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.task.task import Task
    from harbor.models.trial.paths import TrialPaths

    task_dir = task_dir or write_bench_task(temporary / "task")
    paths = TrialPaths(temporary / "trial")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        config,
        environment_dir=task_dir / "environment",
        environment_name="harbor-gym-bench",
        session_id=f"harbor-gym-bench-{uuid4().hex[:8]}",
        trial_paths=paths,
        task_env_config=Task(task_dir).config.environment,
    )


class ExecCounter:
    """Counts the calls of one environment's ``exec``.

    The environment itself is instrumented, not wrapped, since a transport may depend on the environment's class.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self.count = 0
        self._exec = environment.exec
        environment.exec = self._counted

    async def _counted(self, *args: Any, **kwargs: Any) -> ExecResult:
        self.count += 1
        return await self._exec(*args, **kwargs)
