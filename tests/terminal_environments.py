"""Sandboxes for the terminal's tests: a running container behind Harbor's environment class."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override
from uuid import uuid4

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


class ContainerEnvironment(BaseEnvironment):
    """A container that was started by hand; counts the calls that reach it."""

    def __init__(self, container: str, directory: Path, **kwargs: Any) -> None:
        super().__init__(
            environment_dir=directory,
            environment_name="terminal",
            session_id=container,
            trial_paths=TrialPaths(trial_dir=directory),
            task_env_config=EnvironmentConfig(),
            logger=logging.getLogger("container"),
            **kwargs,
        )
        self.container = container
        self.execs = 0
        self.uploads = 0

    @staticmethod
    @override
    def type() -> str:
        return "container"

    @override
    def _validate_definition(self) -> None: ...

    @override
    async def start(self, force_build: bool) -> None: ...

    @override
    async def stop(self, delete: bool) -> None: ...

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self.uploads += 1
        code, output = await _call(["docker", "cp", str(source_path), f"{self.container}:{target_path}"], None)
        if code:
            raise RuntimeError(output)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        raise NotImplementedError

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        raise NotImplementedError

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        raise NotImplementedError

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        self.execs += 1
        owner = [] if user is None else ["-u", str(user)]
        where = [] if cwd is None else ["-w", cwd]
        code, output = await _call(
            ["docker", "exec", *owner, *where, self.container, "bash", "-c", command], timeout_sec
        )
        return ExecResult(stdout=output, return_code=code)


async def _call(argv: Sequence[str], timeout_sec: float | None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_sec)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
    return process.returncode or 0, output.decode(errors="replace")


def start_container(image: str) -> str:
    name = f"terminal-{uuid4().hex[:12]}"
    subprocess.run(
        [
            "docker",
            "run",
            "-d",
            "--rm",
            "--init",
            "--network=none",
            "-w",
            "/srv",
            "--name",
            name,
            image,
            "sleep",
            "inf",
        ],
        check=True,
        capture_output=True,
    )
    return name


def remove_container(name: str) -> None:
    subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)


def has_image(image: str) -> bool:
    docker = shutil.which("docker")
    return (
        docker is not None and not subprocess.run([docker, "image", "inspect", image], capture_output=True).returncode
    )
