"""Harbor's Docker environment with an owner, a short start and a certain end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shlex
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, override

from harbor.environments.base import ExecResult, OutputCallback
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.environments.docker import ENV_COMPOSE_NAME, write_env_compose_file, write_mounts_compose_file
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment
from harbor.environments.docker.docker import (
    _sanitize_docker_compose_project_name,  # pyright: ignore[reportPrivateUsage]  # nothing public names the project
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym.cancellation import uninterrupted
from harbor_gym.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxTimeoutError
from harbor_gym.owners import temporary_prefix
from harbor_gym.processes import start_process
from harbor_gym.sandboxes import docker_engine as engine
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.docker_engine import IMAGE_LABEL, MAIN, SHARED_NETWORK, docker

_STOP_GRACE_SEC = 1
_COMMAND_END_SEC = 5.0
_COPY_TIMEOUT_SEC = 600.0
_SETTLE_SEC = 1.0
_SETTLE_POLL_SEC = 0.1
_DONE = ExecResult(stdout=None, stderr=None, return_code=0)
type _Compose = Callable[[list[str]], Coroutine[Any, Any, ExecResult]]

_logger = logging.getLogger(__name__)
_built_here: set[str] = set()


class DockerEnvironment(HarborDockerEnvironment):
    """Run a task in Docker as Harbor does, with less waiting and nothing left behind.

    Everything carries the labels of run and owner, so that a reaper finds what a killed process left. A task of one
    container shares one network with the other sandboxes of its process, from which it can't reach them, or has none
    under ``no-network``; a task with a Compose file of its own has its own network, as under Harbor. The image of a
    Dockerfile is kept from one start to the next. Commands go to the container past Compose.

    It serves a task's separate verifier too. Windows containers run as under Harbor, with nothing of this.
    """

    def __init__(
        self, environment_dir: Path, *args: Any, extra_docker_compose: Sequence[Path | str] | None = None, **kwargs: Any
    ) -> None:
        own_file = Path(environment_dir) / COMPOSE_FILE_NAME
        self._is_plain = not extra_docker_compose and not own_file.exists()
        self._container: str | None = None
        self._overlay_dir: tempfile.TemporaryDirectory[str] | None = None
        self._was_interrupted = False
        self._has_healthcheck = True
        self.left_behind: str | None = None
        super().__init__(environment_dir, *args, extra_docker_compose=extra_docker_compose, **kwargs)

    @property
    def _project(self) -> str:
        return _sanitize_docker_compose_project_name(self.session_id)

    # --- network -------------------------------------------------------------------------------------------------

    @override
    def _requires_egress_control(  # pyright: ignore[reportIncompatibleMethodOverride]  # static in Harbor, called on self
        self, *, startup_network_policy: NetworkPolicy, phase_network_policies: Sequence[NetworkPolicy]
    ) -> bool:
        """Ask for Harbor's sidecar, whose images need a registry, only where a network can't just be taken away."""
        modes = {policy.network_mode for policy in (startup_network_policy, *phase_network_policies)}
        return NetworkMode.ALLOWLIST in modes or (not self._is_plain and modes != {NetworkMode.PUBLIC})

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        offered = super().capabilities
        if not self._switches_network:
            return offered
        return offered.model_copy(update={"disable_internet": True, "dynamic_network_policy": True})

    @property
    def _switches_network(self) -> bool:
        return self._is_plain and not self._enable_egress_control and not self._is_windows_container

    @property
    def _needs_network(self) -> bool:
        policies = (self.network_policy, *self._phase_network_policies)
        return any(policy.network_mode is not NetworkMode.NO_NETWORK for policy in policies)

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if not self._switches_network:
            await super()._apply_network_policy(network_policy)
            return
        change = "connect" if network_policy.network_mode is NetworkMode.PUBLIC else "disconnect"
        code, output = await docker("network", change, SHARED_NETWORK.name(), self._container or "")
        if code != 0:
            raise SandboxError(f"sandbox {self.session_id!r}: docker network {change} failed: {output.strip()}")

    # --- Compose files -------------------------------------------------------------------------------------------

    @property
    @override
    def _docker_compose_paths(self) -> list[Path]:
        paths = super()._docker_compose_paths
        if self._overlay_dir is not None:
            # Before the task's own file, which has the last word.
            base = {self._DOCKER_COMPOSE_BUILD_PATH, self._DOCKER_COMPOSE_PREBUILT_PATH}
            place = next(index for index, path in enumerate(paths) if path in base)
            paths.insert(place + 1, Path(self._overlay_dir.name) / "overlay.json")
        return paths

    def _write_overlay(self) -> None:
        main: dict[str, Any] = {}
        networks: dict[str, Any] = {"default": {"labels": engine.labels()}}
        if self._switches_network:
            networks = {"default": {"name": SHARED_NETWORK.name(), "external": True}} if self._needs_network else {}
            main = {} if self._needs_network else {"network_mode": "none"}
        if self._keeps_image:
            main |= {"image": self._main_image_name, "pull_policy": "never"}
            main["build"] = {"labels": {IMAGE_LABEL: self.environment_name}}
        declared = engine.own_services(self._user_compose_paths())
        self._overlay_dir = self._temporary_dir("overlay")
        (Path(self._overlay_dir.name) / "overlay.json").write_text(engine.overlay(declared, main, networks))

    @property
    def _keeps_image(self) -> bool:
        """Whether the image's name says all that it is built from; Compose files can bring more into a build."""
        return self._is_plain and not self._use_prebuilt

    @staticmethod
    def _temporary_dir(what: str) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=temporary_prefix(what), ignore_cleanup_errors=True)

    @override
    def _write_mounts_compose_file(self) -> Path:
        self._cleanup_mounts_compose_file()
        self._mounts_compose_temp_dir = self._temporary_dir("mounts")
        path = Path(self._mounts_compose_temp_dir.name) / "docker-compose-mounts.json"
        return write_mounts_compose_file(path, list(self._mounts))

    @override
    def _write_env_compose_file(self) -> Path:
        self._cleanup_env_compose_file()
        self._env_compose_temp_dir = self._temporary_dir("env")
        return write_env_compose_file(Path(self._env_compose_temp_dir.name) / ENV_COMPOSE_NAME, self._startup_env())

    @override
    async def _write_resources_compose_file(self) -> Path:
        # Harbor has just decided on the image, and no Compose command has run yet.
        if not self._is_windows_container:
            self._write_overlay()
        written = await super()._write_resources_compose_file()
        theirs, ours = self._resources_compose_temp_dir, self._temporary_dir("resources")
        self._resources_compose_temp_dir = ours
        path = written.replace(Path(ours.name) / written.name)
        if theirs is not None:
            theirs.cleanup()
        return path

    # --- start ---------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Build the image if this process has not yet, and start the containers.

        Raises:
            SandboxStartError: Docker refuses, or the main container ended at once.
            RuntimeError: Compose failed; Harbor's own error.
        """
        reaper.reap_in_background(in_docker=True)
        await asyncio.to_thread(self._runs_linux_containers)
        if force_build:
            _built_here.discard(self._main_image_name)
        if self._switches_network and self._needs_network:
            await SHARED_NETWORK.use(self.session_id)
        await super().start(force_build)
        if self._switches_network and self._needs_network and self._network_disabled:
            await self._apply_network_policy(self.network_policy)

    @override
    def _validate_daemon_mode(self) -> None:
        if self._is_windows_container or not self._runs_linux_containers():
            super()._validate_daemon_mode()

    @classmethod
    @functools.cache
    def _runs_linux_containers(cls) -> bool:
        return cls._detect_daemon_os() == "linux"

    @override
    async def _validate_image_os(self, image_name: str) -> None:
        """Look at the image once: its system, and whether a start must wait for its health check."""
        if self._is_windows_container:
            await super()._validate_image_os(image_name)
            return
        shape = "{{.Os}} {{if .Config.Healthcheck}}checked{{end}}"
        code, output = await docker("image", "inspect", "--format", shape, image_name)
        if code != 0:
            return  # a prebuilt image that `up` will pull, or one under a name that a Compose file gives
        system, _, checked = output.strip().partition(" ")
        if system != "linux":
            raise SandboxStartError(f"image {image_name!r} is for {system}, and the task is for linux")
        self._has_healthcheck = bool(checked)

    @override
    async def _run_docker_compose_command(
        self,
        command: list[str],
        check: bool = True,
        timeout_sec: int | None = None,
        stdin_data: bytes | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        run = functools.partial(
            super()._run_docker_compose_command,
            check=check, timeout_sec=timeout_sec, stdin_data=stdin_data, on_output=on_output,
        )  # fmt: skip
        if self._is_windows_container:
            return await run(command)
        try:
            return await self._run_shortened(command, run, check=check)
        except asyncio.CancelledError:
            self._was_interrupted = True
            raise

    async def _run_shortened(self, command: list[str], run: _Compose, *, check: bool) -> ExecResult:
        """Run one of Harbor's Compose commands, or what does the same in less time."""
        match command:
            case ["build"]:
                return _DONE if await self._is_built() else await self._build(run)
            case ["down", "--remove-orphans"] if not await engine.containers_of(self._project):
                return _DONE
            case ["up", *options]:
                # Waiting for health polls twice a second, also where nothing tells of health.
                wait = [] if self._is_plain and not self._has_healthcheck else ["--wait"]
                result = await run(["up", *(word for word in options if word != "--wait"), *wait])
                await self._find_container()
                return result
            case ["down", "--rmi", *_]:
                return await self._take_down(run)
            case ["cp", source, target] if self._container is not None:
                return await self._copy(source, target, check=check)
            case _:
                return await run(command)

    async def _is_built(self) -> bool:
        if not self._keeps_image or self._main_image_name not in _built_here:
            return False
        code, _ = await docker("image", "inspect", "--format", "{{.Id}}", self._main_image_name)
        return code == 0

    async def _build(self, run: _Compose) -> ExecResult:
        result = await run(["build"])
        if self._keeps_image and result.return_code == 0:
            _built_here.add(self._main_image_name)
        return result

    async def _find_container(self) -> None:
        running = await engine.containers_of(self._project, service=MAIN, is_running=True)
        if len(running) == 1:
            self._container = running[0]
            return
        known = await engine.containers_of(self._project, service=MAIN)
        said = (await docker("logs", "--tail", "20", known[0]))[1].strip() if known else "there is none"
        raise SandboxStartError(f"sandbox {self.session_id!r}: its main container does not run: {said}")

    @staticmethod
    @override
    async def _collect_buffered_output(
        process: asyncio.subprocess.Process, *, timeout_sec: int | None, stdin_data: bytes | None = None
    ) -> ExecResult:
        try:
            return await HarborDockerEnvironment._collect_buffered_output(
                process, timeout_sec=timeout_sec, stdin_data=stdin_data
            )
        except asyncio.CancelledError:
            # Harbor leaves it running, and what it makes from now on nobody would take down.
            await uninterrupted(_end(process))
            raise

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    async def _compose_exec(
        self,
        command: str,
        *,
        service: str,
        cwd: str | None,
        env: dict[str, str] | None,
        timeout_sec: int | None,
        user: str | int | None,
    ) -> ExecResult:
        if service != MAIN or self._container is None:
            return await super()._compose_exec(
                command, service=service, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user
            )
        flags = [*(("--workdir", cwd) if cwd else ()), *(("--user", str(user)) if user is not None else ())]
        flags += [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
        shell = self._platform.exec_shell_args(command)
        process = await start_process(
            *self._engine_cmd("exec", *flags, self._container, *shell),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        callback = self._output_callback()
        if callback is None:
            return await self._collect_buffered_output(process, timeout_sec=timeout_sec)
        return await self._collect_streamed_output(process, timeout_sec=timeout_sec, on_output=callback)

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the main container.

        Raises:
            SandboxLostError: The container is not running.
        """
        if self._container is None:
            raise SandboxLostError(f"sandbox {self.session_id!r} is not running")
        owner = [] if user is None else ["--user", str(user)]
        return self._engine_cmd("exec", "--interactive", *owner, self._container, "bash", "-c", command)

    async def _copy(self, source: str, target: str, *, check: bool) -> ExecResult:
        ends = [
            f"{self._container}:{end.removeprefix(f'{MAIN}:')}" if end.startswith(f"{MAIN}:") else end
            for end in (source, target)
        ]
        code, output = await docker("cp", *ends, timeout_sec=_COPY_TIMEOUT_SEC)
        if check and code != 0:
            raise RuntimeError(f"docker cp {source} {target} failed: {output.strip()}")
        return ExecResult(stdout=output, stderr=None, return_code=code)

    @override
    async def prepare_logs_for_host(self) -> None:
        """Give what the sandbox wrote into its log folders to this process's user, in one command."""
        targets = self._mount_targets(writable_only=True)
        if self._is_windows_container or self._container is None or not targets:
            return
        # A rootless daemon's root is this user; any other id there would be a stranger's.
        uid, gid = (0, 0) if await self._is_rootless_docker() else (os.getuid(), os.getgid())
        with contextlib.suppress(RuntimeError, OSError, SandboxError):
            await self.exec(f"chown -R {uid}:{gid} {shlex.join(targets)}", user="root")

    @override
    async def _is_rootless_docker(self) -> bool:
        if DockerEnvironment._rootless_docker is None:
            DockerEnvironment._rootless_docker = await super()._is_rootless_docker()
        return DockerEnvironment._rootless_docker

    # --- end -----------------------------------------------------------------------------------------------------

    @override
    async def stop(self, delete: bool) -> None:
        """Stop the sandbox; with ``delete``, remove all of it and look whether it is gone. Idempotent.

        The image of a Dockerfile stays for the next start (label ``harbor_gym.image``).

        Raises:
            SandboxTimeoutError: Something could not be removed; the message says what, and what to do.
        """
        try:
            await super().stop(delete)
        finally:
            if self._overlay_dir is not None:
                self._overlay_dir.cleanup()
                self._overlay_dir = None
            if delete and not self._keep_containers and not self._is_windows_container:
                await uninterrupted(self._make_sure_it_is_gone())

    async def _take_down(self, run: _Compose) -> ExecResult:
        if not self._is_plain:
            return await run(
                ["down", "--rmi", "local", "--volumes", "--remove-orphans", "--timeout", str(_STOP_GRACE_SEC)]
            )
        return _DONE  # one container, which is removed as what is left

    async def _make_sure_it_is_gone(self) -> None:
        self._container = None
        kinds = (
            ["container"] if self._is_plain and not self._enable_egress_control else ["container", "network", "volume"]
        )
        try:
            refusals = await self._remove_what_is_left(kinds)
        except SandboxError as exc:
            refusals = [str(exc)]
        finally:
            await SHARED_NETWORK.leave(self.session_id)
        if refusals:
            self.left_behind = (
                f"sandbox {self.session_id!r} could not be removed: {'; '.join(refusals)}. Remove it by hand "
                f"(docker ps -a --filter label={engine.PROJECT_LABEL}={self._project}), or run `harbor-gym reap` when "
                "this process has ended"
            )
            warnings.warn(self.left_behind, ResourceWarning, stacklevel=2)
            raise SandboxTimeoutError(self.left_behind)

    async def _remove_what_is_left(self, kinds: list[str]) -> list[str]:
        """Remove everything of the project; return what Docker refused to remove, and why."""
        ending = time.monotonic() + (_SETTLE_SEC if self._was_interrupted else 0.0)
        while True:
            left = await engine.left_of(self._project, kinds)
            refusals = await engine.remove(left)
            if refusals and await engine.left_of(self._project, kinds):
                return refusals
            # The daemon may still be carrying out what a command asked for that was cut off.
            if time.monotonic() >= ending:
                return []
            await asyncio.sleep(_SETTLE_POLL_SEC)


async def _end(process: asyncio.subprocess.Process) -> None:
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        end()
        with contextlib.suppress(TimeoutError):
            # Reads to the end and closes the pipes, which waiting alone does not.
            await asyncio.wait_for(process.communicate(), _COMMAND_END_SEC)
