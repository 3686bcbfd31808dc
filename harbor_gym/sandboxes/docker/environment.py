"""Harbor's Docker environment with an owner, a shorter start and a guaranteed removal.

A start uses Compose as under Harbor, without its superfluous commands, which are recognised by the arguments that
Harbor passes to Compose: tests/unit/episode/test_harbor_patches.py fails if a new Harbor passes others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.environments.base import EnvironmentPath, ExecResult, OutputCallback
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.environments.docker import ENV_COMPOSE_NAME, write_env_compose_file, write_mounts_compose_file
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment
from harbor.environments.docker.docker import (
    _sanitize_docker_compose_project_name,  # pyright: ignore[reportPrivateUsage]  # nothing public names the project
)
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode, ServiceVolumeConfig

from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym._runtime.harbor_versions import declares_options
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes import dockerfile, reaper
from harbor_gym.sandboxes.archive import transfers
from harbor_gym.sandboxes.archive.trees.records import ALL, Choice
from harbor_gym.sandboxes.declared import is_trials_own, require_workdir
from harbor_gym.sandboxes.docker import accounts, downloads, egress, engine, launch
from harbor_gym.sandboxes.docker import setup as image_setup
from harbor_gym.sandboxes.docker.engine import MAIN, docker
from harbor_gym.sandboxes.docker.exec import run_inside
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
from harbor_gym.sandboxes.docker.setup import DockerSetup, ImageGoneError, ImageInfo
from harbor_gym.sandboxes.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxTimeoutError
from harbor_gym.sandboxes.extensions import ExecTimeoutError
from harbor_gym.sandboxes.images.build import ImageSource, content_hash, failing_together
from harbor_gym.sandboxes.labels import IMAGE_LABEL, PROJECT_LABEL
from harbor_gym.sandboxes.labels import labels as own_labels
from harbor_gym.sandboxes.options import SandboxOptions
from harbor_gym.sandboxes.setup_command import is_of_verifier, require_success
from harbor_gym.sandboxes.tools import DockerfileError, build_failure

_UP_ATTEMPTS = 4
_SETTLE_SEC = 1.0
_DONE = ExecResult(stdout=None, stderr=None, return_code=0)
type _Compose = Callable[[list[str]], Coroutine[Any, Any, ExecResult]]


@declares_options
class DockerEnvironment(HarborDockerEnvironment):
    """Run a task in Docker as Harbor does, with less waiting and without leftovers.

    All Docker objects have labels of run and owner, by which a reaper finds those of a killed process. A task of one
    container shares one network with the other sandboxes of its process, in which they can't reach each other, or has
    none under ``no-network``; a task with a Compose file of its own has its own network, as under Harbor. The shared
    network is removed when the process ends. The image of a Dockerfile is kept from one start to the next. Commands
    bypass Compose, and one that is cancelled or out of time is killed. No downloaded link leads to this machine's own
    files.

    A ``setup_command`` runs once, in a container of its own, and the resulting image is kept too (label
    ``harbor_gym.image``); sandboxes of one image, command and network share it. It runs at each start if an image could
    not hold all of its work: with a Compose file, mounts or declared volumes.

    Harbor mounts its log folders from the trial's directory on this machine, where a link made in the sandbox could
    lead to a file of this machine. Here they are in the container, or mounted from a temporary folder if a task has a
    Compose file, and are downloaded: the environment reports that it is not ``mounted``.

    It also runs a task's separate verifier. Harbor refuses Windows containers, which need a Windows host.
    """

    cuts_rewards: ClassVar[bool] = True
    known_failures: ClassVar[Mapping[str, str]] = {
        "stderr_is_told_apart": "stderr comes in stdout, in order of printing",
        "root_inside_is_root_of_its_own_namespace": "containers have the machine's user namespace, unless remapped",
        "terminals_end_at_the_sandboxs_own_limit": "the machine's pseudo-terminals are one number for all containers",
        **engine.DAEMON_LIMITS,
        "the_first_process_is_closed": "root inside may write to the memory of the first process, which is its equal",
        "the_kernels_memory_is_hidden": "Docker hides less: kpagecount, slabinfo and others are the machine's",
        "a_user_stays_who_it_was": "Docker looks users up in the container's own /etc/passwd",
        "a_verifier_sees_the_image_and_what_counts": "a container has no second root for its verifier",
        "a_verifier_is_closed_to_all_outside_of_its_view": "a container has no second root for its verifier",
        "a_verifiers_directories_can_be_its_own": "all commands of a container see the same files",
        "what_ran_before_the_policy_is_closed_to_it": "all commands of a container have the same rights",
        "no_program_inside_takes_part_in_directory_calls": "Harbor asks for them by the container's own shell",
        "a_set_up_runs_with_the_images_programs": "a container has no second root for a later step's set-up",
    }
    """stderr is as under Harbor, whose callers may rely on the order; the others are limits of containers."""

    own_options = SandboxOptions

    def __init__(self, environment_dir: Path, *args: Any, **kwargs: Any) -> None:
        """Prepare a sandbox by Harbor's arguments and the options of :class:`SandboxOptions`.

        Raises:
            UsageError: An option has no such value.
        """
        options = SandboxOptions.taken_from(kwargs)
        own_file = Path(environment_dir) / COMPOSE_FILE_NAME
        # Harbor's own constructor reads the capabilities, which depend on this.
        self._is_plain = not kwargs.get("extra_docker_compose") and not own_file.exists()
        self._container: str | None = None
        self._look: ImageInfo | None = None
        self._has_healthcheck = True
        self._was_blocked = False
        self._set_up_image: str | None = None
        self._overlay_dir: tempfile.TemporaryDirectory[str] | None = None
        self._logs_dir: tempfile.TemporaryDirectory[str] | None = None
        self._was_interrupted = False
        self.left_behind: str | None = None
        super().__init__(environment_dir, *args, **kwargs)
        self._log_mounts = [item for item in self._mounts if is_trials_own(item, self.trial_paths)]
        # A separate verifier's sandbox has an image of its own.
        self._setup_command = None if is_of_verifier(self.session_id) else options.setup_command
        builds = options.build_dockerfile and not is_of_verifier(self.session_id)
        if builds and dockerfile.alternative(self.environment_dir):
            self.task_env_config = self.task_env_config.model_copy(update={"docker_image": None})

    @property
    def _project(self) -> str:
        return _sanitize_docker_compose_project_name(self.session_id)

    async def is_up(self) -> bool:
        """Return whether Docker runs the main container, without running a command in it."""
        return bool(await engine.containers_of(self._project, service=MAIN, is_running=True))

    async def unblock(self) -> str | None:
        """Replace a device or FIFO in place of the main container's accounts, which would hold up the daemon."""
        if self._container is not None and await accounts.unblock(self._container):
            self._was_blocked = True
        return "a device or a FIFO was in place of /etc/passwd" if self._was_blocked else None

    # --- start ---------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Build the image if this process has not yet, and start the containers.

        Raises:
            SandboxStartError: Docker refuses, the main container ended at once, or the set-up command failed.
            TaskError: The image is unhealthy, or lacks its USER or the task's working directory.
            RuntimeError: Compose failed; Harbor's own error.
        """
        reaper.reap_in_background(in_docker=True)
        self._share_logs()
        await asyncio.to_thread(self._runs_linux_containers)
        if force_build:
            self._forget_image()
        await super().start(force_build)
        if self._switches_network and self._needs_network and self._network_disabled:
            await self._apply_network_policy(self.network_policy)
        await require_workdir(self)
        if self._setup_command is not None and not self.shares_setup:
            await self._set_up_here(self._setup_command)

    @property
    def shares_setup(self) -> bool:
        """Whether the started sandbox uses files that a set-up command wrote once for many sandboxes."""
        return self._set_up_image is not None

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
        """Check the image's system, and note whether a start must wait for its health check."""
        self._look = await self._find_image(image_name)
        if self._look is None:
            return  # a prebuilt image that `up` will pull, or one under a name that a Compose file gives
        if self._look.system != "linux":
            raise SandboxStartError(f"image {image_name!r} is for {self._look.system}, and the task is for linux")
        self._has_healthcheck = self._look.has_healthcheck

    async def _find_image(self, name: str) -> ImageInfo | None:
        return await launch.find_image(name, pulls=self._use_prebuilt and self._setup_command is not None)

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
        try:
            return await self._run_shortened(command, run, check=check)
        except asyncio.CancelledError:
            self._was_interrupted = True
            raise

    async def _run_shortened(self, command: list[str], run: _Compose, *, check: bool) -> ExecResult:
        """Run one of Harbor's Compose commands, or a faster equivalent."""
        match command:
            case ["build"]:
                return await self._build(run)
            case ["down", "--remove-orphans"] if not await engine.containers_of(self._project):
                return _DONE
            case ["up", *options]:
                return await self._up(options, run)
            case ["down", "--rmi", *_] if self._is_plain:
                return _DONE  # one container, which stop() removes
            case ["down", "--rmi", *_]:
                grace = str(engine.STOP_GRACE_SEC)
                return await run(["down", "--rmi", "local", "--volumes", "--remove-orphans", "--timeout", grace])
            case ["cp", source, target] if self._container is not None and target.startswith(f"{MAIN}:"):
                inside = target.removeprefix(f"{MAIN}:")
                return await launch.copy_in(self._container, source, inside, check=check)
            case _:
                return await run(command)

    async def _build(self, run: _Compose) -> ExecResult:
        if self._keeps_image and self._main_image_name in launch.BUILT_IMAGES:
            return _DONE
        content = await asyncio.to_thread(content_hash, ImageSource(self.environment_dir))
        with (
            failing_together(f"docker-{content}", time.monotonic()),
            ticking(f"building the image of {self.environment_dir}", delay_sec=SLOW_SEC),
        ):
            try:
                result = await run(["build"])
            except RuntimeError as exc:
                if "failed to solve" not in str(exc):
                    raise
                raise DockerfileError(build_failure(self.environment_dir / "Dockerfile", str(exc))) from exc
        look = await image_setup.inspect_image(self._main_image_name) if self._keeps_image else None
        if look is not None:
            launch.BUILT_IMAGES[self._main_image_name] = look
        return result

    async def _up(self, options: Sequence[str], run: _Compose) -> ExecResult:
        # Waiting for health polls twice a second, even if the image has no health check.
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
                    launch.require_account(exc)
                    await launch.require_health(self._project, exc)
                    if self._use_prebuilt and (image := self.task_env_config.docker_image) is not None:
                        await launch.require_image(image, self.environment_dir, exc)
                    raise
                attempt += 1
            else:
                await self._find_container()
                return result

    async def _restore(self, answer: str, run: _Compose) -> bool:
        """Make a network or image again that was removed since the last start; return whether one was.

        Checking before each start would cost more than the container does.
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
        launch.BUILT_IMAGES.pop(self._main_image_name, None)
        if self._set_up_image is not None:
            image_setup.forget(self._set_up_image)

    async def _find_container(self) -> None:
        try:
            self._container = await launch.running_container(self._project)
        except SandboxStartError as exc:
            raise SandboxStartError(f"sandbox {self.session_id!r}: {exc}") from None

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
            # Harbor leaves it running: containers that it starts from now on would stay.
            await shielded(launch.end_client(process))
            raise

    # --- set-up ------------------------------------------------------------------------------------------------------

    async def _set_up_once(self) -> bool:
        """Make the set-up command's image if possible and missing; return whether the sandbox uses one."""
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

    @property
    def _shares_setup_image(self) -> bool:
        """Whether an image made in a container of its own can hold all the work of a set-up command."""
        return self._switches_network and not self._mounts_of_this_machine and self._effective_gpus == 0

    @property
    def _bounds(self) -> list[str]:
        """The options of ``docker run`` that limit a container's use of the machine."""
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        memory_mb = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        words = [] if cpus is None else ["--cpus", str(float(cpus))]
        return words if memory_mb is None else [*words, "--memory", f"{memory_mb}m"]

    # --- network -------------------------------------------------------------------------------------------------

    @override
    def _requires_egress_control(  # pyright: ignore[reportIncompatibleMethodOverride]  # static in Harbor, called on self
        self, *, startup_network_policy: NetworkPolicy, phase_network_policies: Sequence[NetworkPolicy]
    ) -> bool:
        """Use Harbor's sidecar, whose image needs a registry, only where disconnecting the network is not enough."""
        modes = {policy.network_mode for policy in (startup_network_policy, *phase_network_policies)}
        return NetworkMode.ALLOWLIST in modes or (not self._is_plain and modes != {NetworkMode.PUBLIC})

    @override
    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Do as Harbor, and report why a network can't be restricted as the task declares.

        Raises:
            ValueError: It can't; Harbor's own error.
        """
        try:
            super().validate_network_policy_support(network_policy)
        except ValueError as exc:
            if self._enable_egress_control:
                raise
            why = egress.probe_refusal(self._EGRESS_CONTROL_KERNEL_PROBE_IMAGE)
            mode = (network_policy or self.network_policy).network_mode.value
            raise ValueError(
                f"network_mode='{mode}' is refused on Docker: Harbor's egress control, a sidecar that such a network "
                f"goes through, first runs a probe, and {why}"
            ) from exc

    @override
    async def _ensure_egress_control_sidecar_image_built(self) -> None:
        try:
            await super()._ensure_egress_control_sidecar_image_built()
        except RuntimeError as exc:
            why = egress.build_refusal(self._egress_control_sidecar_dockerfile_path(), exc)
            raise SandboxStartError(f"sandbox {self.session_id!r}: {why}") from exc

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        supported = super().capabilities.model_copy(update={"mounted": False})
        if not self._switches_network:
            return supported
        return supported.model_copy(update={"disable_internet": True, "dynamic_network_policy": True})

    @property
    def _switches_network(self) -> bool:
        return self._is_plain and not self._enable_egress_control

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
            # Before the task's own file, which takes precedence.
            base = {self._DOCKER_COMPOSE_BUILD_PATH, self._DOCKER_COMPOSE_PREBUILT_PATH}
            place = next(index for index, path in enumerate(paths) if path in base)
            paths.insert(place + 1, Path(self._overlay_dir.name) / "overlay.json")
        return paths

    def _write_overlay(self) -> None:
        main: dict[str, Any] = {}
        networks: dict[str, Any] = {"default": {"labels": own_labels()}}
        if self._switches_network:
            networks = {"default": {"name": SHARED_NETWORK.name(), "external": True}} if self._needs_network else {}
            main = {} if self._needs_network else {"network_mode": "none"}
        if self._keeps_image:
            main |= {"image": self._main_image_name, "pull_policy": "never"}
            main["build"] = {"labels": {IMAGE_LABEL: self.environment_name}}
        if self._set_up_image is not None:
            main |= {"image": self._set_up_image, "pull_policy": "never"}
        declared = engine.own_services(self._user_compose_paths())
        if self._overlay_dir is not None:
            self._overlay_dir.cleanup()
        self._overlay_dir = self._temporary_dir("overlay")
        (Path(self._overlay_dir.name) / "overlay.json").write_text(
            engine.overlay(declared, main, networks), encoding="utf-8"
        )

    @property
    def _keeps_image(self) -> bool:
        """Whether the image's name identifies all sources of its build; Compose files can add further ones."""
        return self._is_plain and not self._use_prebuilt

    @staticmethod
    def _temporary_dir(what: str) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=temporary_prefix(what), ignore_cleanup_errors=True)

    @override
    def _write_mounts_compose_file(self) -> Path:
        self._cleanup_mounts_compose_file()
        self._mounts_compose_temp_dir = self._temporary_dir("mounts")
        path = Path(self._mounts_compose_temp_dir.name) / "docker-compose-mounts.json"
        return write_mounts_compose_file(path, self._mounts_of_this_machine)

    @override
    def _write_env_compose_file(self) -> Path:
        self._cleanup_env_compose_file()
        self._env_compose_temp_dir = self._temporary_dir("env")
        return write_env_compose_file(Path(self._env_compose_temp_dir.name) / ENV_COMPOSE_NAME, self._startup_env())

    @override
    async def _write_resources_compose_file(self) -> Path:
        # At this point Harbor has chosen the image, and no Compose command has run yet.
        self._write_overlay()
        written = await super()._write_resources_compose_file()
        theirs, ours = self._resources_compose_temp_dir, self._temporary_dir("resources")
        self._resources_compose_temp_dir = ours
        path = written.replace(Path(ours.name) / written.name)
        if theirs is not None:
            theirs.cleanup()
        return path

    # --- log folders ---------------------------------------------------------------------------------------------

    @property
    def _mounts_of_this_machine(self) -> list[ServiceVolumeConfig]:
        return [item for item in self._mounts if not (self._is_plain and item in self._log_mounts)]

    def _share_logs(self) -> None:
        """Move log folders, which Compose files may share among services, to a folder that this process never reads."""
        if self._is_plain or not self._log_mounts or self._logs_dir is not None:
            return
        self._logs_dir = self._temporary_dir("logs")
        moved: dict[str, ServiceVolumeConfig] = {}
        for number, mount in enumerate(self._log_mounts):
            folder = Path(self._logs_dir.name) / str(number)
            folder.mkdir()
            folder.chmod(0o777)
            moved[mount["target"]] = {**mount, "source": str(folder)}
        self._mounts = [moved.get(item["target"], item) if item in self._log_mounts else item for item in self._mounts]
        # Since 0.25 Harbor takes the log folders' paths for a Compose file only from these.
        self._host_mounts = self._mounts

    # --- files -------------------------------------------------------------------------------------------------------

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the sandbox.

        Raises:
            SandboxError: It is larger than four times the sandbox's storage.
        """
        with transfers.explained(f"upload {source_path} to {target_path}"):
            await asyncio.to_thread(transfers.measure, Path(source_path), self._transfer_limit_bytes)
        await super().upload_file(source_path, target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a host directory into a directory of the sandbox, made if absent.

        Raises:
            FileNotFoundError: The host has no such directory.
            SandboxError: It is larger than four times the sandbox's storage, or has too many files.
        """
        if not await asyncio.to_thread(Path(source_dir).is_dir):
            raise FileNotFoundError(f"{source_dir} is not a directory of this machine")
        with transfers.explained(f"upload {source_dir} to {target_dir}"):
            await asyncio.to_thread(transfers.measure, Path(source_dir), self._transfer_limit_bytes)
        await super().upload_dir(source_dir, target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to the host; a link is followed inside the sandbox.

        Raises:
            SandboxError: There is no such file, or it is larger than four times the sandbox's storage.
        """
        await self.service_download_file(source_path, target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory of the sandbox into a host directory, made if absent.

        Links that lead out of the directory, devices and FIFOs are left out: nothing is written elsewhere, and nothing
        of the host is read later.

        Raises:
            SandboxError: There is no such directory, or it is larger than four times the sandbox's storage.
        """
        await self.service_download_dir(source_dir, target_dir)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        source = await self._download_source(service)
        await downloads.download_file(source, source_path, Path(target_path), limit_bytes=self._transfer_limit_bytes)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        await self._download_some(source_dir, target_dir, ALL, service)

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """Do as :meth:`download_dir`, without the entries that ``tar --exclude`` leaves out for these patterns."""
        await self.service_download_dir_with_exclusions(source_dir=source_dir, target_dir=target_dir, exclude=exclude)

    @override
    async def service_download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str], service: str | None = None
    ) -> None:
        # Harbor's own method runs tar in the sandbox, and unpacks the archive in this process.
        await self._download_some(source_dir, target_dir, Choice(without=exclude), service)

    @override
    async def download_dir_filtered(
        self,
        *,
        source_dir: str,
        target_dir: Path | str,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        await self._download_some(source_dir, target_dir, Choice((), include or (), exclude or (), protect or ()))

    async def _download_some(
        self, source_dir: str, target_dir: Path | str, choice: Choice, service: str | None = None
    ) -> None:
        source, limit_bytes = await self._download_source(service), self._transfer_limit_bytes
        await downloads.download_dir(source, source_dir, Path(target_dir), limit_bytes=limit_bytes, choice=choice)

    async def _download_source(self, service: str | None) -> str:
        if service in (None, MAIN):
            if self._container is not None:
                return self._container
        elif containers := await engine.containers_of(self._project, service=service):
            return containers[0]
        raise SandboxLostError(f"sandbox {self.session_id!r} has no container of its service {service or MAIN!r}")

    @property
    def _transfer_limit_bytes(self) -> int:
        return transfers.limit_bytes(self._effective_storage_mb)

    @override
    async def prepare_logs_for_host(self) -> None:
        """Give the sandbox's files in its log folders to this process's user, in one command."""
        targets = [item["target"] for item in self._mounts_of_this_machine if not item.get("read_only")]
        if self._container is None or not targets:
            return
        # A rootless daemon's root is this user; any other id there would be another user's.
        uid, gid = (0, 0) if await self._is_rootless_docker() else (os.getuid(), os.getgid())
        with contextlib.suppress(RuntimeError, OSError, SandboxError):
            await self.exec(f"chown -R {uid}:{gid} {shlex.join(targets)}", user="root")

    @override
    async def _is_rootless_docker(self) -> bool:
        if DockerEnvironment._rootless_docker is None:
            DockerEnvironment._rootless_docker = await super()._is_rootless_docker()
        return DockerEnvironment._rootless_docker

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
        if container is None:
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
        """Return an argument vector for a process of this machine that runs ``command`` in the main container.

        Raises:
            SandboxLostError: The container is not running.
        """
        if self._container is None:
            raise SandboxLostError(f"sandbox {self.session_id!r} is not running")
        owner = [] if user is None else ["--user", str(user)]
        return self._engine_cmd("exec", "--interactive", *owner, self._container, "bash", "-c", command)

    # --- end -----------------------------------------------------------------------------------------------------

    @override
    async def stop(self, delete: bool) -> None:
        """Stop the sandbox; with ``delete``, remove all its objects and check that they are gone. Idempotent.

        The image of a Dockerfile stays for the next start (label ``harbor_gym.image``).

        Raises:
            SandboxTimeoutError: An object could not be removed; the message names it and the remedy.
        """
        try:
            if not self._is_plain:
                with contextlib.suppress(OSError):  # the trial's folder may be gone already
                    await engine.keep_output(self._project, self.trial_paths.trial_dir / "services")
            await super().stop(delete)
        finally:
            if self._overlay_dir is not None:
                self._overlay_dir.cleanup()
                self._overlay_dir = None
            if self._logs_dir is not None and delete:
                self._logs_dir.cleanup()
                self._logs_dir = None
            if delete and not self._keep_containers:
                await shielded(self._make_sure_it_is_gone())

    async def _make_sure_it_is_gone(self) -> None:
        container, self._container = self._container, None
        kinds = (
            ["container"] if self._is_plain and not self._enable_egress_control else ["container", "network", "volume"]
        )
        # The daemon may still be executing a command that was interrupted.
        remove_all = functools.partial(
            engine.remove_all, self._project, kinds, settle_sec=_SETTLE_SEC if self._was_interrupted else 0.0
        )
        try:
            if kinds == ["container"] and container is not None and not self._was_interrupted:
                left = [engine.Left("container", container)]  # there is nothing else
                refusals = await engine.remove(left) and await remove_all()
            else:
                refusals = await remove_all()
        except SandboxError as exc:
            refusals = [str(exc)]
        if refusals:
            self.left_behind = (
                f"sandbox {self.session_id!r} could not be removed: {'; '.join(refusals)}. Remove it by hand "
                f"(docker ps -a --filter label={PROJECT_LABEL}={self._project}), or run `harbor-gym reap` when "
                "this process has ended"
            )
            warnings.warn(self.left_behind, ResourceWarning, stacklevel=2)
            raise SandboxTimeoutError(self.left_behind)
