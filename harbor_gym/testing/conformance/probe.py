"""The sandboxes of one run of the sandbox check, and the operations that its behaviours use."""

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import ServiceVolumeConfig
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths

from harbor_gym.errors import MissingDependencyError, TaskUnsupportedError
from harbor_gym.testing.conformance.behaviours import NotApplicable, Violation

type MakeSandbox = Callable[..., BaseEnvironment]
"""Takes the keyword arguments of Harbor's ``BaseEnvironment`` and returns one, not started; a class works."""

IMAGE_WORKDIR = "/image/workdir"
IMAGE_ENV = "hello image"
TASK_ENV = {"TASK_SAYS": "hello task", "TRIAL_SAYS": "task"}
TRIAL_ENV = {"TRIAL_SAYS": "hello trial"}
TASK_WORKDIR = "/srv"
USER, UID, GID = "dev", 1234, 4321

DOCKERFILE = f"""\
FROM debian:bookworm-slim
ENV IMAGE_SAYS="{IMAGE_ENV}"
RUN useradd --create-home --uid {UID} --shell /bin/bash {USER} && groupadd --gid {GID} crew
WORKDIR {IMAGE_WORKDIR}
"""
"""The image that the behaviours expect, with its ENV, WORKDIR and user."""

SERVICE, SERVICE_SAYS = "side", "hello service"
COMPOSE = f"""\
services:
  main:
    depends_on: {{{SERVICE}: {{condition: service_healthy}}}}
    volumes: ["shared:/shared"]
  {SERVICE}:
    build: .
    command: ["sh", "-c", 'echo "$$SAYS" >/shared/said; sleep 5002']
    environment: {{SAYS: {SERVICE_SAYS}}}
    healthcheck: {{test: "test -e /shared/said", interval: 1s}}
    volumes: ["shared:/shared"]
volumes: {{shared: }}
"""
"""A service beside ``main``, for kinds of sandboxes that run such."""

EXEC_TIMEOUT_SEC = 30


class Probe:
    """The means of one check: the shared sandbox, further ones on demand, and a folder of this machine.

    Sandboxes are started when first asked for and stopped by :meth:`close`. ``sandbox`` stands for all behaviours
    that don't end it; ``other()`` is a second one, without a network where the kind can do that.
    """

    def __init__(self, make_sandbox: MakeSandbox, directory: Path, dockerfile: str) -> None:
        self._make_sandbox = make_sandbox
        self._root = directory
        self._context = directory / "environment"
        self._context.mkdir()
        (self._context / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        self._sandbox: BaseEnvironment | None = None
        self._other: BaseEnvironment | None = None
        self._composed: BaseEnvironment | NotApplicable | None = None
        self._ended: tuple[BaseEnvironment, asyncio.Task[ExecResult]] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Start the shared sandbox, or start it anew if it no longer answers."""
        async with self._lock:
            if self._sandbox is None or not await _answers(self._sandbox):
                self._sandbox = await self._start(self.make())

    @property
    def sandbox(self) -> BaseEnvironment:
        """The shared sandbox."""
        assert self._sandbox is not None, "prepare() comes first"
        return self._sandbox

    async def other(self) -> BaseEnvironment:
        """Return a second sandbox, whose task sets a workdir."""
        async with self._lock:
            if self._other is None:
                can_be_offline = self.sandbox.capabilities.disable_internet
                policy = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK) if can_be_offline else None
                self._other = await self._start(self.make(network_policy=policy, workdir=TASK_WORKDIR))
            return self._other

    async def composed(self) -> BaseEnvironment:
        """Return a sandbox whose task has a service.

        Raises:
            NotApplicable: This kind of sandbox runs none, or not here.
        """
        async with self._lock:
            if self._composed is None:
                self._composed = await self._compose()
        if isinstance(self._composed, NotApplicable):
            raise self._composed
        return self._composed

    async def _compose(self) -> BaseEnvironment | NotApplicable:
        if not self.sandbox.capabilities.docker_compose:
            return NotApplicable("this kind runs no services of a Compose file (capabilities.docker_compose)")
        context = self._root / "composed"
        shutil.copytree(self._context, context)
        (context / "docker-compose.yaml").write_text(COMPOSE, encoding="utf-8")
        try:
            return await self._start(self.make(context=context))
        except (TaskUnsupportedError, MissingDependencyError) as exc:
            return NotApplicable(str(exc))

    @contextlib.asynccontextmanager
    async def small(self, memory_mb: int) -> AsyncGenerator[BaseEnvironment]:
        """Start a separate sandbox with this much memory, in MiB, for a block."""
        sandbox = self.make(memory_mb=memory_mb)
        try:
            await sandbox.start(force_build=False)
            yield sandbox
        finally:
            await sandbox.stop(delete=True)

    async def ended(self) -> tuple[BaseEnvironment, "asyncio.Task[ExecResult]"]:
        """Return a third sandbox that was stopped during a command, and that command."""
        async with self._lock:
            if self._ended is None:
                sandbox = await self._start(self.make())
                command = asyncio.ensure_future(sandbox.exec("sleep 5001"))
                self._stack.push_async_callback(_cancel, command)
                await asyncio.wait([command], timeout=0.5)
                await sandbox.stop(delete=True)
                self._ended = (sandbox, command)
            return self._ended

    async def fresh(self) -> BaseEnvironment:
        """Return a fresh sandbox for the caller alone."""
        return await self._start(self.make())

    def make(
        self,
        *,
        network_policy: NetworkPolicy | None = None,
        workdir: str | None = None,
        memory_mb: int | None = None,
        storage_mb: int | None = None,
        context: Path | None = None,
    ) -> BaseEnvironment:
        """Make a sandbox without starting it."""
        name = f"check-{secrets.token_hex(4)}"
        paths = TrialPaths(self._root / name)
        paths.mkdir()
        inside = EnvironmentPaths()
        mounts: list[ServiceVolumeConfig] = [
            {"type": "bind", "source": source.resolve().as_posix(), "target": str(target)}
            for source, target in (
                (paths.verifier_dir, inside.verifier_dir),
                (paths.agent_dir, inside.agent_dir),
                (paths.artifacts_dir, inside.artifacts_dir),
            )
        ]
        settings: dict[str, Any] = {"network_policy": network_policy} if network_policy is not None else {}
        return self._make_sandbox(
            environment_dir=context or self._context,
            environment_name="harbor-gym-check",
            session_id=name,
            trial_paths=paths,
            task_env_config=EnvironmentConfig(
                env=dict(TASK_ENV), workdir=workdir, memory_mb=memory_mb, storage_mb=storage_mb
            ),
            persistent_env=dict(TRIAL_ENV),
            mounts=mounts,
            **settings,
        )

    def folder(self) -> Path:
        """Return a new, empty folder of this machine."""
        return Path(tempfile.mkdtemp(dir=self._root))

    async def run(self, command: str, *, sandbox: BaseEnvironment | None = None, **options: Any) -> ExecResult:
        """Run a command in ``sandbox``, by default the shared one; there is always a timeout."""
        options.setdefault("timeout_sec", EXEC_TIMEOUT_SEC)
        return await (sandbox or self.sandbox).exec(command, **options)

    async def output(self, command: str, **options: Any) -> str:
        """Run a command that must succeed, and return its output without final line feeds; options as for ``run``."""
        result = await self.run(command, **options)
        if result.return_code != 0:
            answer = f"{result.stdout or ''}{result.stderr or ''}".strip()
            raise Violation(f"{command[:200]!r} should have succeeded; status {result.return_code}: {answer[-300:]}")
        return (result.stdout or "").rstrip("\n")

    async def leave_running(self, marker: int) -> None:
        """Start a process with ``marker`` as an argument, which outlives its command, and wait until it is visible."""
        wait = f"for i in {{1..200}}; do {_find_command(marker)} && exit 0; sleep 0.01; done; exit 1"
        await self.output(f"setsid sleep {marker} >/dev/null 2>&1 </dev/null & {wait}")

    async def expect_dead(self, marker: int) -> None:
        """Expect that soon no process has ``marker`` as an argument."""
        script = f"grep -qz . /proc/self/cmdline || exit 4; for i in {{1..20}}; do {_find_command(marker)} || exit 0; "
        result = await self.run(f"{script}sleep 0.1; done; exit 3")
        if result.return_code != 0:
            raise Violation("the process still runs inside" if result.return_code == 3 else "processes can't be seen")

    async def is_alive(self, marker: int, *, sandbox: BaseEnvironment | None = None) -> bool:
        """Return whether a process has ``marker`` as an argument, in ``sandbox``, by default the shared one."""
        return (await self.run(_find_command(marker), sandbox=sandbox)).return_code == 0

    async def close(self) -> None:
        """Stop every sandbox."""
        await self._stack.aclose()

    async def _start(self, sandbox: BaseEnvironment) -> BaseEnvironment:
        self._stack.push_async_callback(sandbox.stop, delete=True)
        await sandbox.start(force_build=False)
        return sandbox


def _find_command(marker: int) -> str:
    """Return a command that finds a process with this argument, but not itself."""
    text = str(marker)
    return f"grep -qszx '{text[:-1]}[{text[-1]}]' /proc/[0-9]*/cmdline"


async def _answers(sandbox: BaseEnvironment) -> bool:
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_SEC):
            return (await sandbox.exec("true")).return_code == 0
    except Exception:  # The boundary to foreign code: any error means that the sandbox is gone.
        return False


async def _cancel(task: "asyncio.Task[ExecResult]") -> None:
    task.cancel()
    await asyncio.wait([task])
