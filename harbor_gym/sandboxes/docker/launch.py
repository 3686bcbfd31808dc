"""Start a task's containers: by Compose as under Harbor, without the commands that have nothing to do.

Which these are follows from the arguments that Harbor gives to Compose: tests/unit/episode/test_harbor_patches.py fails
where a new Harbor gives others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, override

from harbor.environments.base import EnvironmentPath, ExecResult, OutputCallback
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment
from harbor.models.task.config import NetworkMode

from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.docker import engine as engine
from harbor_gym.sandboxes.docker import setup as image_setup
from harbor_gym.sandboxes.docker.engine import MAIN, docker
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
from harbor_gym.sandboxes.docker.setup import DockerSetup, ImageGoneError, ImageInfo
from harbor_gym.sandboxes.docker.transfers import DockerTransfers
from harbor_gym.sandboxes.extensions import ExecTimeoutError
from harbor_gym.sandboxes.health import healthcheck_of, unhealthy
from harbor_gym.sandboxes.setup_command import is_of_verifier, require_success

_COMMAND_END_SEC = 5.0
_PULL_TIMEOUT_SEC = 600.0
_UP_ATTEMPTS = 4
_DONE = ExecResult(stdout=None, stderr=None, return_code=0)
type _Compose = Callable[[list[str]], Coroutine[Any, Any, ExecResult]]

_looks: dict[str, ImageInfo] = {}
"""Images that this process has built. One that is gone shows when a container is to be made of it."""


class DockerLaunch(DockerTransfers):
    """Harbor's start without what it need not wait for, and a set-up command that runs once for many starts."""

    def __init__(
        self, *args: Any, setup_command: str | None = None, build_dockerfile: bool = False, **kwargs: Any
    ) -> None:
        if setup_command is not None and not setup_command.strip():
            raise UsageError("sandbox option setup_command is empty")
        self._was_interrupted = False
        self._look: ImageInfo | None = None
        self._has_healthcheck = True
        super().__init__(*args, **kwargs)
        # A separate verifier's sandbox has an image of its own.
        self._setup_command = None if is_of_verifier(self.session_id) else setup_command
        if build_dockerfile and not is_of_verifier(self.session_id) and dockerfile.alternative(self.environment_dir):
            self.task_env_config = self.task_env_config.model_copy(update={"docker_image": None})

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
        self._look = await self._find_image(image_name)
        if self._look is None:
            return  # a prebuilt image that `up` will pull, or one under a name that a Compose file gives
        if self._look.system != "linux":
            raise SandboxStartError(f"image {image_name!r} is for {self._look.system}, and the task is for linux")
        self._has_healthcheck = self._look.has_healthcheck

    async def _find_image(self, name: str) -> ImageInfo | None:
        look = _looks.get(name) or await image_setup.inspect_image(name)
        if look is None and self._use_prebuilt and self._setup_command is not None:
            with ticking(f"pulling {name}"):
                await docker("pull", name, timeout_sec=_PULL_TIMEOUT_SEC)  # why it fails, `up` will report
            look = await image_setup.inspect_image(name)
        return look

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
                return await self._build(run)
            case ["down", "--remove-orphans"] if not await engine.containers_of(self._project):
                return _DONE
            case ["up", *options]:
                return await self._up(options, run)
            case ["down", "--rmi", *_] if self._is_plain:
                return _DONE  # one container, which is removed as what is left
            case ["down", "--rmi", *_]:
                grace = str(engine.STOP_GRACE_SEC)
                return await run(["down", "--rmi", "local", "--volumes", "--remove-orphans", "--timeout", grace])
            case ["cp", source, target] if self._container is not None and target.startswith(f"{MAIN}:"):
                return await self._copy(source, target, check=check)
            case _:
                return await run(command)

    async def _require_image(self, refusal: Exception) -> None:
        """Raise more details than Compose's error where a prebuilt image is missing and a Dockerfile lies beside it."""
        image = self.task_env_config.docker_image if self._use_prebuilt else None
        if image is None or not (instead := dockerfile.alternative(self.environment_dir)):
            return
        if await image_setup.inspect_image(image) is None:
            answer = " ".join(str(refusal).split())
            raise SandboxStartError(f"image {image!r} is not available ({answer}). {instead}") from refusal

    async def _require_health(self, refusal: Exception) -> None:
        """Raise an error of the task instead where the main container runs, and its health check fails."""
        for container in await engine.containers_of(self._project, service=MAIN, is_running=True):
            _, shown = await docker("inspect", container)
            found: dict[str, Any] = json.loads(shown)[0]
            health: dict[str, Any] = found["State"].get("Health") or {}
            if health.get("Status") != "unhealthy":
                continue
            _, shown = await docker("image", "inspect", found["Image"])  # a container's configuration has no SHELL
            shell = json.loads(shown)[0]["Config"].get("Shell")
            declared, last = healthcheck_of({**found["Config"], "Shell": shell}), health["Log"][-1]
            if declared is not None:
                raise unhealthy(declared, health["FailingStreak"], last["ExitCode"], last["Output"]) from refusal

    async def _build(self, run: _Compose) -> ExecResult:
        if self._keeps_image and self._main_image_name in _looks:
            return _DONE
        with ticking(f"building the image of {self.environment_dir}", delay_sec=SLOW_SEC):
            result = await run(["build"])
        look = await image_setup.inspect_image(self._main_image_name) if self._keeps_image else None
        if look is not None:
            _looks[self._main_image_name] = look
        return result

    async def _up(self, options: Sequence[str], run: _Compose) -> ExecResult:
        # Waiting for health polls twice a second, also where nothing reports health.
        wait = [] if self._is_plain and not self._has_healthcheck else ["--wait"]
        words = ["up", *(word for word in options if word != "--wait"), *wait]
        shares_network = self._switches_network and self._needs_network
        if shares_network:
            await SHARED_NETWORK.make()
        attempt = 1
        while True:
            try:
                if await self._set_up_once():
                    self._write_overlay()
                with ticking(f"starting the containers of {self.environment_dir}", delay_sec=SLOW_SEC):
                    result = await run(words)
            except (RuntimeError, ImageGoneError) as exc:
                if attempt == _UP_ATTEMPTS or not await self._restore(str(exc), run):
                    await self._require_health(exc)
                    await self._require_image(exc)
                    raise
                attempt += 1
            else:
                await self._find_container()
                return result

    async def _restore(self, answer: str, run: _Compose) -> bool:
        """Make again what was removed since the last start; return whether anything was.

        Looking each time would cost more than the container does.
        """
        if SHARED_NETWORK.is_missing(answer):
            await SHARED_NETWORK.make(anew=True)
            return True
        if not image_setup.is_missing(answer) or not self._is_plain or self._look is None:
            return False
        self._forget_image()
        if self._keeps_image:
            await self._build(run)
        image = self.task_env_config.docker_image if self._use_prebuilt else self._main_image_name
        self._look = await self._find_image(image or "")
        return self._look is not None

    def _forget_image(self) -> None:
        _looks.pop(self._main_image_name, None)
        if self._set_up_image is not None:
            image_setup.forget(self._set_up_image)

    # --- set-up --------------------------------------------------------------------------------------------------

    async def _set_up_once(self) -> bool:
        """Ensure the set-up command's image, where one can be made; return whether the sandbox is to stand on one."""
        if self._setup_command is None or self._look is None or not self._shares_setup_image or self._look.has_volumes:
            return False
        has_network = self.network_policy.network_mode is not NetworkMode.NO_NETWORK
        setup = DockerSetup(
            command=self._setup_command,
            look=self._look,
            project=self._project,
            made_for=self.environment_name,
            container=f"{self._project}-set-up",
            bounds=tuple(self._bounds),
            workdir=self.task_env_config.workdir,
            has_network=has_network,
        )
        self._set_up_image = await image_setup.set_up(setup, timeout_sec=self.task_env_config.build_timeout_sec)
        return True

    async def _set_up_here(self, command: str) -> None:
        try:
            done = await self.exec(command, user="root", timeout_sec=round(self.task_env_config.build_timeout_sec))
        except ExecTimeoutError as exc:
            raise SandboxStartError(f"setup_command: {exc} (build_timeout_sec)") from exc
        require_success(done.return_code, done.stdout or "")

    @override
    async def ensure_dirs(self, dirs: Sequence[EnvironmentPath], *, chmod: bool = True) -> ExecResult | None:
        result = await super().ensure_dirs(dirs, chmod=chmod)
        if result is not None and result.return_code != 0 and self._container is not None:
            await self._find_container()  # raises if it has ended
        return result

    async def _find_container(self) -> None:
        running = await engine.containers_of(self._project, service=MAIN, is_running=True)
        if len(running) == 1:
            self._container = running[0]
            return
        known = await engine.containers_of(self._project, service=MAIN)
        answer = (await docker("logs", "--tail", "20", known[0]))[1].strip() if known else "there is none"
        raise SandboxStartError(f"sandbox {self.session_id!r}: its main container does not run: {answer}")

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
            await shielded(_end(process))
            raise


async def _end(process: asyncio.subprocess.Process) -> None:
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        end()
        with contextlib.suppress(TimeoutError):
            # Reads to the end and closes the pipes, which waiting alone does not.
            await asyncio.wait_for(process.communicate(), _COMMAND_END_SEC)
