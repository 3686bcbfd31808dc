"""Sandboxes for the terminal's tests, which count their calls: a local one, and a container started by hand."""

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, override
from uuid import uuid4

import pytest
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.terminal import Terminal, TerminalTurn
from harbor_gym.types import Command
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC

type Transport = Literal["auto", "portable", "persistent"]
type Sandbox = LocalSandbox | Container

KINDS = (pytest.param("local", marks=pytest.mark.local), pytest.param("docker", marks=pytest.mark.docker))
"""Parameters of a fixture ``sandbox`` that calls :func:`running_sandbox`. Of most tests it has the first alone."""

ON_DOCKER_TOO = pytest.mark.parametrize("sandbox", KINDS, indirect=True)
"""For a test of what the sandbox has a part in: commands, pipes, users, processes and their ends."""

LONG_SEC = float(PATIENCE_SEC)
"""A ceiling that a passing test never reaches."""

BASE_IMAGE = "debian:bookworm-slim"
IMAGE = "harbor-gym-test-terminal"
DOCKERFILE = f"""\
FROM {BASE_IMAGE}
RUN command -v tmux vi less python3 ps nano sudo | wc -l | grep -qx 7 \\
    || {{ apt-get update && apt-get install -y --no-install-recommends tmux vim-tiny less python3 procps nano sudo; }}
RUN useradd -m -s /bin/bash agent && echo agent:secret | chpasswd && usermod -aG sudo agent \\
    && echo "Defaults lecture=never" >/etc/sudoers.d/plain && echo 'PS1="$ "' | tee /root/.bashrc >/home/agent/.bashrc
WORKDIR /srv
"""


class LocalSandbox(LocalEnvironment):
    """A local sandbox."""

    execs = 0
    transport: Transport = "auto"

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        self.execs += 1
        return await super().exec(*args, **kwargs)


class Container(BaseEnvironment):
    """A container that was started by hand."""

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
        self.transport: Transport = "auto"

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
        raise NotImplementedError

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

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        owner = [] if user is None else ["-u", str(user)]
        return ["docker", "exec", "-i", *owner, self.container, "bash", "-c", command]


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


def channel_processes(of: int | None) -> list[int]:
    """Return the topmost processes with a channel below a process; for None, all of this machine."""
    parents: dict[int, int] = {}
    holders: set[int] = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            if b"/step serve" in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                holders.add(pid)
    return [pid for pid in holders if of is None or _is_below(pid, of, parents, holders)]


def _is_below(pid: int, ancestor: int, parents: dict[int, int], between: set[int]) -> bool:
    while (pid := parents.get(pid, 0)) not in (0, ancestor):
        if pid in between:
            return False
    return pid == ancestor


def write_dockerfile(directory: Path, dockerfile: str = DOCKERFILE) -> None:
    """Write the test image's recipe."""
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text(dockerfile)


async def start_local(directory: Path, dockerfile: str = DOCKERFILE, *, storage_mb: int | None = None) -> LocalSandbox:
    """Start a local sandbox of the test image; the caller stops it."""
    write_dockerfile(directory, dockerfile)
    sandbox = LocalSandbox(
        environment_dir=directory,
        environment_name="terminal",
        session_id="terminal",
        trial_paths=TrialPaths(trial_dir=directory),
        task_env_config=EnvironmentConfig(storage_mb=storage_mb),
    )
    await sandbox.start(force_build=False)
    return sandbox


def start_container(directory: Path, *options: str) -> str:
    """Start a container of the test image with options of `docker run`; return its name. The caller removes it."""
    write_dockerfile(directory)
    _docker("build", "-q", "-t", IMAGE, str(directory))
    name = f"terminal-{uuid4().hex[:12]}"
    _docker("run", "-d", "--rm", "--init", "--network=none", "--name", name, *options, IMAGE, "sleep", "inf")
    return name


def remove_container(name: str) -> None:
    _docker("rm", "-f", name)


@contextlib.contextmanager
def running_container(directory: Path, *options: str) -> Generator[str]:
    """Run a container of the test image, with options of `docker run`, during the block; its name is given."""
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE_IMAGE], check=True)
    name = start_container(directory, *options)
    try:
        yield name
    finally:
        remove_container(name)


@contextlib.asynccontextmanager
async def running_sandbox(
    request: pytest.FixtureRequest,
    directory: Path,
    *,
    clean: str,
    transport: Transport = "auto",
    storage_mb: int | None = None,
) -> AsyncGenerator[Sandbox]:
    """Give a sandbox of the kind that a fixture's parameter names.

    Args:
        request: The fixture's; for Docker, its file's fixture ``container`` is entered.
        directory: An empty directory.
        clean: A command that removes earlier tests' files from the container.
        transport: The sandbox's ``transport``.
        storage_mb: The disk of a local sandbox.
    """
    require_engine(request.param)
    if request.param == "docker":
        entered = Container(request.getfixturevalue("container"), directory)
        entered.transport = transport
        await entered.exec(clean)
        entered.execs = 0
        yield entered
        return
    started = await start_local(directory / "environment", storage_mb=storage_mb)
    started.transport = transport
    yield started
    await started.stop(delete=True)


def _docker(*arguments: str) -> None:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {arguments[0]}: {done.stderr}"


async def enter(terminal: Terminal, *keystrokes: str, wait_sec: float = LONG_SEC) -> TerminalTurn:
    """Type keystrokes, each text as a command of its own."""
    return await terminal.run([Command(keys, wait_sec) for keys in keystrokes])
