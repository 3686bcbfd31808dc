"""What the environments of supervised sandboxes have in common where a task has a Compose file: the services."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

from harbor.environments.base import ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME, should_use_prebuilt_docker_image
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.utils.env import resolve_env_vars

from harbor_gym._runtime.cache import Hold
from harbor_gym.sandboxes.compose.member import Member, is_idle, require_options
from harbor_gym.sandboxes.compose.reader import read_project
from harbor_gym.sandboxes.compose.running import RunningServices
from harbor_gym.sandboxes.entrypoint import await_services
from harbor_gym.sandboxes.errors import TaskError
from harbor_gym.sandboxes.image_settings import ImageSettings
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.namespaced import NamespacedEnvironment, default_env
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.supervisor.client import Dump, SupervisedSandbox
from harbor_gym.sandboxes.supervisor.options import NamespacedOptions
from harbor_gym.sandboxes.supervisor.program.messages import (
    CgroupLimits,
    CommandSpec,
    NetworkChange,
    SupervisorConfig,
)

if TYPE_CHECKING:
    from harbor_gym.sandboxes.compose.service import ServiceSandbox

_END_SEC = 30.0


class ComposedEnvironment[Options: NamespacedOptions](NamespacedEnvironment[Options]):
    """A sandbox that is ``main`` of its task's Compose file or one of its services, or whose task has no such file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._member: Member | None = None
        """Itself among the services; None for a task without a Compose file, and before the start."""
        self._others: RunningServices | None = None
        """The services beside it; None where there are none, and before the start."""
        self._network_process = 0
        """The first process of the sandbox whose network it has; 0 for one of its own."""
        super().__init__(*args, **kwargs)

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return super().capabilities.model_copy(update={"docker_compose": True})

    @property
    @override
    def _uses_compose(self) -> bool:
        return bool(self.extra_docker_compose_paths) or (self.environment_dir / COMPOSE_FILE_NAME).exists()

    @override
    def _validate_definition(self) -> None:
        super()._validate_definition()
        if self._uses_compose:
            require_options(self._options, self.type())

    @property
    def given_options(self) -> Options:
        """The options with which it was made; ``options`` are Harbor's own since 0.26."""
        return self._options

    @property
    def phase_policies(self) -> tuple[NetworkPolicy, ...]:
        """The networks of the trial's phases."""
        return self._phase_policies

    # --- its image -----------------------------------------------------------------------------------------------

    @override
    async def _provide_image(self, *, force_build: bool) -> None:
        if self._uses_compose:
            await self._read_compose(force_build=force_build)
        await self._provide_own_image(force_build=force_build)
        if self._others is not None:
            await self._others.build_images(force_build=force_build or self._renews_images)

    @property
    def _renews_images(self) -> bool:
        """Whether images are made anew that are there, in any case."""
        return False

    @abstractmethod
    async def _provide_own_image(self, *, force_build: bool) -> None:
        """Get what :meth:`_bring_up_sandbox` starts from."""

    def _source(self, *, force_build: bool) -> ImageSource:
        """Return the source of its image: the Compose file, or the task's definition."""
        named = self._prebuilt(force_build=force_build)
        if self._member is None or self._member.is_plain(self.environment_dir, named):
            return ImageSource(self.environment_dir, docker_image=named)
        return self._member.source

    def _prebuilt(self, *, force_build: bool) -> str | None:
        """Return the image that the task names, if its Dockerfile is not to be built instead."""
        named = self.task_env_config.docker_image
        is_prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build or self._builds_dockerfile
        )
        return named if is_prebuilt else None

    @property
    def _builds_dockerfile(self) -> bool:
        """Whether the task's Dockerfile is built even if the task names an image."""
        return self._options.build_dockerfile

    def _dressed[Settings: ImageSettings](self, image: Settings) -> Settings:
        """Return an image with the settings of its service in place of its own."""
        return image if self._member is None else self._member.dressed(image)

    async def _read_compose(self, *, force_build: bool) -> None:
        """Read the Compose files as Harbor's Docker has them read, and make an environment of each service."""
        project = await read_project(
            self.environment_dir,
            self.extra_docker_compose_paths,
            name=self.session_id,
            docker_image=self._prebuilt(force_build=force_build),
            task_env=resolve_env_vars(self.task_env_config.env) if self.task_env_config.env else {},
            main_env=self._startup_env(),
            mounts=self._mounts,
        )
        if any(policy.network_mode != NetworkMode.PUBLIC for policy in (self.network_policy, *self._phase_policies)):
            project = project.sharing()
        self._member = Member(project, project.main)
        sandboxes = {other.name: self._service(Member(project, other)) for other in project.others}
        self._others = RunningServices(
            project, sandboxes, self.trial_paths.trial_dir / "services", self._storage_mb << 20
        )

    @abstractmethod
    def _service(self, member: Member) -> ServiceSandbox:
        """Return a sandbox of this kind for another service, not started yet."""

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def _bring_up(self) -> None:
        image = await self._bring_up_sandbox()
        if self._others is not None:
            await self._others.start(self, self._begin_main)
        elif not self._is_copy:
            await self._set_up()
            await self._make_ready(image)

    @abstractmethod
    async def _bring_up_sandbox(self) -> ImageSettings:
        """Start the sandbox without a command of the task; return its image with the settings that hold in it."""

    async def _set_up(self) -> None:
        """Prepare the running sandbox before its first command, where its image does not have that yet."""

    @override
    async def _start_sandbox(self, config: SupervisorConfig, *, copied: Dump | None = None) -> None:
        if self._member is not None:
            config = self._member.placed(config, self._host_name)._replace(network_of=self._network_process)
        await super()._start_sandbox(config, copied=copied)

    @property
    def _host_name(self) -> str:
        """Its host name, unless its service gives one."""
        return self._options.host_name

    @override
    def _limits(self) -> CgroupLimits:
        limits = super()._limits()
        return limits if self._member is None else self._member.limited(limits)

    @override
    def _network_of(self, policy: NetworkPolicy) -> NetworkChange:
        if self._member is not None and not self._member.has_way_out:
            return NetworkChange(is_public=False, allowlist=None)
        return super()._network_of(policy)

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await super()._apply_network_policy(network_policy)
        if self._others is not None:
            for sandbox in self._others.sandboxes.values():
                await sandbox.follow(network_policy)

    async def _begin_main(self) -> None:
        """Make the agent's own sandbox ready, once the services run on which it depends."""
        image = self._started_image()
        assert self._others is not None
        await self._set_up()
        if is_idle(image.command):
            await self._make_ready(image)
            return
        await self._others.begin_command(self)
        self._services = await await_services(self._running().clean_up)
        await self._make_ready(replace(image, entrypoint=()))

    @override
    async def _end(self, sandbox: SupervisedSandbox | None, hold: Hold | None) -> None:
        others, self._others = self._others, None
        try:
            if others is not None:
                await others.stop()
        finally:
            await super()._end(sandbox, hold)

    async def start_command(self) -> PipedCommand:
        """Start the command of its service, with the image's ENTRYPOINT before it.

        Raises:
            TaskError: There is none.
            SandboxLostError: The sandbox is not running.
        """
        image = self._started_image()
        argv = (*image.entrypoint, *image.command)
        if not argv:
            raise TaskError("neither the service nor its image names a command")
        env = default_env(image)
        command = CommandSpec(shlex.join(argv), image.user, image.workdir, env, argv, joins_outputs=True)
        return await self._running().open(self._restricted(command))

    def _restricted(self, command: CommandSpec) -> CommandSpec:
        """Return a command with the rights that its service has."""
        if self._member is None:
            return command
        service = self._member.service
        return command._replace(dropped=service.dropped, no_new_privileges=service.no_new_privileges)

    @override
    def _request(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> CommandSpec:
        return self._restricted(super()._request(command, cwd=cwd, env=env, user=user))

    # --- Harbor's operations on single services ------------------------------------------------------------------

    @override
    async def service_exec(
        self,
        command: str,
        *,
        service: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run ``command`` in a service: in another than ``main`` by its ``sh``, with its own user and environment.

        Raises:
            SandboxError: As :meth:`exec`, or there is no such service, or its command has ended.
            RuntimeError: The task has no Compose file; Harbor's own error.
        """
        given: dict[str, Any] = {"cwd": cwd, "env": env, "timeout_sec": timeout_sec, "user": user}
        if service is None or self.is_main_service(service) or self._others is None:
            return await super().service_exec(command, service=service, **given)
        sandbox = self._others.running(service)
        if (emit := self._output_callback()) is None:
            return await sandbox.exec(command, **given)
        with sandbox.scoped_output_callback(emit):
            return await sandbox.exec(command, **given)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        """Copy a file out of a service, also after its command's end; as :meth:`service_exec`."""
        if service is None or self.is_main_service(service) or self._others is None:
            await super().service_download_file(source_path, target_path, service=service)
        else:
            await self._others.sandbox(service).download_file(source_path, target_path)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        """Copy a directory out of a service; as :meth:`service_download_file`."""
        if service is None or self.is_main_service(service) or self._others is None:
            await super().service_download_dir(source_dir, target_dir, service=service)
        else:
            await self._others.sandbox(service).download_dir(source_dir, target_dir)

    @override
    async def stop_service(self, service: str) -> None:
        """End the processes of a service, by SIGTERM first; its files stay, and the other services run on.

        Raises:
            SandboxError: There is no such service.
            RuntimeError: The task has no Compose file; Harbor's own error.
        """
        if self._others is None:
            await super().stop_service(service)
        elif self.is_main_service(service):
            await self.end_processes(grace_sec=self._others.project.main.stop_grace_sec)
        else:
            await self._others.end(service)

    async def end_processes(self, *, grace_sec: float) -> None:
        """End all processes in the sandbox, which stays.

        Args:
            grace_sec: Seconds from SIGTERM to SIGKILL.
        """
        arguments = {
            "own": [], "ipc_objects": [], "terminal": [], "leftovers": "", "grace_sec": grace_sec,
            "deadline_sec": grace_sec + _END_SEC / 2, "keeps": False,
        }  # fmt: skip
        await self._running().clean_up("stop", arguments, timeout_sec=grace_sec + _END_SEC)
