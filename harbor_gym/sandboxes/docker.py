"""Harbor's Docker environment with an owner, a short start and a certain end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, override

from harbor.environments.base import EnvironmentPath, ExecResult, OutputCallback
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment

from harbor_gym.cancellation import uninterrupted
from harbor_gym.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxTimeoutError
from harbor_gym.sandboxes import docker_engine as engine
from harbor_gym.sandboxes import docker_files, reaper
from harbor_gym.sandboxes.docker_engine import MAIN, SHARED_NETWORK, docker
from harbor_gym.sandboxes.docker_exec import run_inside
from harbor_gym.sandboxes.docker_project import DockerProject

_COMMAND_END_SEC = 5.0
_COPY_TIMEOUT_SEC = 600.0
_DEFAULT_STORAGE_MB = 2048
_SETTLE_SEC = 1.0
_RUN_TIMEOUT_SEC = 120.0
_SETTLE_POLL_SEC = 0.1
_DONE = ExecResult(stdout=None, stderr=None, return_code=0)
type _Compose = Callable[[list[str]], Coroutine[Any, Any, ExecResult]]

_built_here: set[str] = set()


class DockerEnvironment(DockerProject):
    """Run a task in Docker as Harbor does, with less waiting and nothing left behind.

    Everything carries the labels of run and owner, so that a reaper finds what a killed process left. A task of one
    container shares one network with the other sandboxes of its process, from which it can't reach them, or has none
    under ``no-network``; a task with a Compose file of its own has its own network, as under Harbor. The image of a
    Dockerfile is kept from one start to the next. Commands go to the container past Compose, and one that is cancelled
    or out of time is dead. Nothing that is downloaded leads to this machine's own files.

    It serves a task's separate verifier too. Windows containers run as under Harbor, with nothing of this.
    """

    not_promised: ClassVar[Mapping[str, str]] = {"stderr_is_told_apart": "stderr comes in stdout, in order of printing"}
    """As under Harbor, whose callers may rely on the order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._was_interrupted = False
        self._shape: str | None = None
        self._has_healthcheck = True
        self.left_behind: str | None = None
        super().__init__(*args, **kwargs)

    # --- start ---------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Build the image if this process has not yet, and start the containers.

        Raises:
            SandboxStartError: Docker refuses, or the main container ended at once.
            RuntimeError: Compose failed; Harbor's own error.
        """
        reaper.reap_in_background(in_docker=True)
        self._share_logs()
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
        shape = self._shape or await self._look_at(image_name)
        if shape is None:
            return  # a prebuilt image that `up` will pull, or one under a name that a Compose file gives
        system, _, checked = shape.partition(" ")
        if system != "linux":
            raise SandboxStartError(f"image {image_name!r} is for {system}, and the task is for linux")
        self._has_healthcheck = bool(checked)

    @staticmethod
    async def _look_at(image_name: str) -> str | None:
        shape = "{{.Os}} {{if .Config.Healthcheck}}checked{{end}}"
        code, output = await docker("image", "inspect", "--format", shape, image_name)
        return output.strip() if code == 0 else None

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
            case ["down", "--remove-orphans"] if self._runs_past_compose:
                return _DONE
            case ["down", "--remove-orphans"] if not await engine.containers_of(self._project):
                return _DONE
            case ["up", *_] if self._runs_past_compose:
                return await self._run_container()
            case ["up", *options]:
                # Waiting for health polls twice a second, also where nothing tells of health.
                wait = [] if self._is_plain and not self._has_healthcheck else ["--wait"]
                result = await run(["up", *(word for word in options if word != "--wait"), *wait])
                await self._find_container()
                return result
            case ["down", "--rmi", *_]:
                return await self._take_down(run)
            case ["cp", source, target] if self._container is not None and target.startswith(f"{MAIN}:"):
                return await self._copy(source, target, check=check)
            case _:
                return await run(command)

    @property
    def _runs_past_compose(self) -> bool:
        """Whether ``up`` is one ``docker run``. The image is known by then; only Compose pulls and awaits health."""
        return self._is_one_container and not self._has_healthcheck

    async def _run_container(self) -> ExecResult:
        code, output = await docker(*self._run_words(), timeout_sec=_RUN_TIMEOUT_SEC)
        if code == 125 and "is already in use" in output:  # of an earlier start under the same name
            await engine.remove(await engine.left_of(self._project, ["container"]))
            code, output = await docker(*self._run_words(), timeout_sec=_RUN_TIMEOUT_SEC)
        if code != 0:
            raise SandboxStartError(f"sandbox {self.session_id!r}: docker run failed: {output.strip()}")
        self._container = output.split()[-1]
        return _DONE

    @override
    async def ensure_dirs(self, dirs: Sequence[EnvironmentPath], *, chmod: bool = True) -> ExecResult | None:
        result = await super().ensure_dirs(dirs, chmod=chmod)
        if result is not None and result.return_code != 0 and self._container is not None:
            await self._find_container()  # says so if it has ended
        return result

    async def _is_built(self) -> bool:
        if not self._keeps_image or self._main_image_name not in _built_here:
            return False
        self._shape = await self._look_at(self._main_image_name)
        return self._shape is not None

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
        container = await self._container_of(service)
        if self._is_windows_container or container is None:
            return await super()._compose_exec(
                command, service=service, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user
            )
        flags = [*(("--workdir", cwd) if cwd else ()), *(("--user", str(user)) if user is not None else ())]
        flags += [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
        # As under Harbor: the images of a task's other services may have no bash.
        shell = "bash" if service == MAIN else "sh"
        return await run_inside(
            container, command, shell=shell, flags=flags, timeout_sec=timeout_sec, emit=self._output_callback()
        )

    async def _container_of(self, service: str) -> str | None:
        if service == MAIN:
            return self._container
        running = await engine.containers_of(self._project, service=service, is_running=True)
        return running[0] if len(running) == 1 else None

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the main container.

        Raises:
            SandboxLostError: The container is not running.
        """
        if self._container is None:
            raise SandboxLostError(f"sandbox {self.session_id!r} is not running")
        owner = [] if user is None else ["--user", str(user)]
        return self._engine_cmd("exec", "--interactive", *owner, self._container, "bash", "-c", command)

    # --- files ---------------------------------------------------------------------------------------------------

    async def _copy(self, source: str, target: str, *, check: bool) -> ExecResult:
        """Do what Compose's ``cp`` does to the main container, and make the folder that is to hold the target."""
        inside = target.removeprefix(f"{MAIN}:")
        copy = ("cp", source, f"{self._container}:{inside}")
        code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
        if code != 0 and await asyncio.to_thread(os.path.exists, source):
            folder = inside if source.endswith("/.") else str(PurePosixPath(inside).parent)
            await docker("exec", "--user", "0", self._container or "", "mkdir", "-p", "--", folder)
            code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
        if check and code != 0:
            raise RuntimeError(f"docker cp {source} {target} failed: {output.strip()}")
        return ExecResult(stdout=output, stderr=None, return_code=code)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        if not await asyncio.to_thread(Path(source_dir).is_dir):
            raise FileNotFoundError(f"{source_dir} is not a directory of this machine")
        await super().upload_dir(source_dir, target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to the host; a link is followed inside the sandbox.

        Raises:
            SandboxError: There is no such file, or it is larger than four times the sandbox's storage.
        """
        if self._is_windows_container:
            await super().download_file(source_path, target_path)
            return
        await self.service_download_file(source_path, target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory of the sandbox into a host directory, made if absent.

        Links that lead out of the directory, devices and FIFOs are left out: nothing is written elsewhere, and nothing
        of the host is read later.

        Raises:
            SandboxError: There is no such directory, or it is larger than four times the sandbox's storage.
        """
        if self._is_windows_container:
            await super().download_dir(source_dir, target_dir)
            return
        await self.service_download_dir(source_dir, target_dir)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        if self._is_windows_container:
            await super().service_download_file(source_path, target_path, service=service)
            return
        source = await self._download_source(service)
        await docker_files.download_file(source, source_path, Path(target_path), limit_bytes=self._download_limit_bytes)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        if self._is_windows_container:
            await super().service_download_dir(source_dir, target_dir, service=service)
            return
        source = await self._download_source(service)
        await docker_files.download_dir(source, source_dir, Path(target_dir), limit_bytes=self._download_limit_bytes)

    async def _download_source(self, service: str | None) -> str:
        if service in (None, MAIN):
            if self._container is not None:
                return self._container
        elif containers := await engine.containers_of(self._project, service=service):
            return containers[0]
        raise SandboxLostError(f"sandbox {self.session_id!r} has no container of its service {service or MAIN!r}")

    @property
    def _download_limit_bytes(self) -> int:
        # Sparse files and files of the image make a tree larger than what was written.
        return 4 * ((self._effective_storage_mb or _DEFAULT_STORAGE_MB) << 20)

    @override
    async def prepare_logs_for_host(self) -> None:
        """Give what the sandbox wrote into its log folders to this process's user, in one command."""
        targets = [one["target"] for one in self._mounts_of_this_machine if not one.get("read_only")]
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
            if self._logs_dir is not None and delete:
                self._logs_dir.cleanup()
                self._logs_dir = None
            if delete and not self._keep_containers and not self._is_windows_container:
                await uninterrupted(self._make_sure_it_is_gone())

    async def _take_down(self, run: _Compose) -> ExecResult:
        if not self._is_plain:
            return await run(
                ["down", "--rmi", "local", "--volumes", "--remove-orphans", "--timeout", str(engine.STOP_GRACE_SEC)]
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
