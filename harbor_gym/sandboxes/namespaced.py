"""The common base of environments whose sandboxes a supervisor runs: everything but their images."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import posixpath
import re
import shlex
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, override

from harbor.environments.base import ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import require_agent_environment_definition
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import Hold, mountpoint
from harbor_gym._runtime.harbor_versions import resource_capabilities
from harbor_gym._runtime.processes import allow_open_files
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.archive.environment import CarriesFiles
from harbor_gym.sandboxes.archive.transfers import Way, knowing_empty
from harbor_gym.sandboxes.declared import is_trials_own, no_account, require_workdir
from harbor_gym.sandboxes.entrypoint import Entrypoint, Services, await_services
from harbor_gym.sandboxes.errors import (
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SandboxTimeoutError,
    TaskError,
    TaskUnsupportedError,
)
from harbor_gym.sandboxes.extensions import ExecTimeoutError
from harbor_gym.sandboxes.health import await_health
from harbor_gym.sandboxes.image_settings import ImageSettings
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import text_chunks
from harbor_gym.sandboxes.supervisor import cgroups, processors
from harbor_gym.sandboxes.supervisor.client import Dump, SupervisedSandbox
from harbor_gym.sandboxes.supervisor.network import NAME_SERVER, NETWORK_PROGRAM, allowlist, closed_networks
from harbor_gym.sandboxes.supervisor.options import NamespacedOptions
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import SERVICE, VERIFIER
from harbor_gym.sandboxes.supervisor.program.messages import (
    HOST_NAME,
    OPEN_FILES_OF_CALLER,
    CgroupLimits,
    CommandSpec,
    NetworkChange,
    SupervisorConfig,
)
from harbor_gym.sandboxes.tools import find_program

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SMALL_IDS = re.compile(r"[0-9]{1,9}(:[0-9]{1,9})?")
"""A USER that needs no look: its ids exist in every sandbox, or are checked with the image's."""

_LEAST_CPUS = 0.01
"""The kernel's smallest quota is 1 ms in periods of 100 ms."""

_AUTOGROUP_NICE = -10
_LOOK_TIMEOUT_SEC, _DIRECTORIES_TIMEOUT_SEC = 10.0, 60.0


@functools.cache
def _outweigh_sandboxes() -> None:
    """Give this process a larger share of the processor than each sandbox's session, once.

    Linux shares processor time among sessions (autogroups), so 64 busy sandboxes would starve the event loop that
    serves them: the 99th percentile of its lag was 147 ms, and is 4 ms with this weight. Ordinary users can't set it.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_AUTOGROUP_NICE), encoding="utf-8")


class NamespacedEnvironment[Options: NamespacedOptions](CarriesFiles):
    """One sandbox of this machine's kernel, from its start to its end."""

    own_options: type[Options]
    """The record of its options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a sandbox by Harbor's arguments and the options of its kind.

        Raises:
            UsageError: An option has no such value.
        """
        self._options = self.own_options.taken_from(kwargs)
        self._sandbox: SupervisedSandbox | None = None
        self._hold: Hold | None = None
        self._image: ImageSettings | None = None
        self._entrypoint: Entrypoint | None = None
        self._services: Services | None = None
        self._ending: asyncio.Future[None] | None = None
        self._has_image = self._is_started = self._has_argv_outside = self._is_copy = False
        self._commands_before_vacancy = -1
        self._empty: set[str] = set()
        self._processors: tuple[int, ...] = ()
        self._phase_policies: tuple[NetworkPolicy, ...] = tuple(kwargs.get("phase_network_policies") or ())
        policies = (kwargs.get("network_policy") or NetworkPolicy(), *self._phase_policies)
        self._modes = {policy.network_mode for policy in policies}
        super().__init__(*args, **kwargs)

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        # A sandbox has the machine's network from its start to its end, or never.
        is_own = self._options.network != "machine" or NetworkMode.PUBLIC not in self._modes
        return EnvironmentCapabilities(
            mounted=False,
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=is_own,
        )

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return what this machine's control groups can enforce. Makes and removes empty ones, once per process."""
        if sys.platform != "linux":
            return resource_capabilities()
        places = cgroups.places()
        return resource_capabilities(cpu_limit="cpu" in places, memory_limit="memory" in places)

    @override
    def _validate_definition(self) -> None:
        if not self._has_image_of_options:
            require_agent_environment_definition(
                self.environment_dir,
                docker_image=self.task_env_config.docker_image,
                extra_docker_compose_paths=self.extra_docker_compose_paths,
            )
        foreign = [mount["target"] for mount in self._mounts if not is_trials_own(mount, self.trial_paths)]
        if foreign:
            raise TaskUnsupportedError(
                f"{self.type()} sandboxes mount nothing of the host (asked for: {', '.join(foreign)}): use --env docker"
            )
        if gpus := self._effective_gpus:
            raise TaskUnsupportedError(
                f"[environment] gpus = {gpus}: {self.type()} sandboxes have no GPU: use --env docker, where Docker has "
                "the NVIDIA Container Toolkit"
            )
        limits = {
            "cpus": self._effective_cpus,
            "memory_mb": self._effective_memory_mb,
            "storage_mb": self._effective_storage_mb,
        }
        for name, value in limits.items():
            # A fraction of a CPU is allowed down to the kernel's smallest quota.
            least = _LEAST_CPUS if name == "cpus" else 1
            if value is not None and value < least:
                raise TaskError(
                    f"[environment] {name} = {value}: must be at least {least}; without it, the default holds"
                )
        for policy in (self.network_policy, *self._phase_policies):
            if policy.allowed_hosts and self._options.network != "none":
                allowlist(policy.allowed_hosts, has_private=self._options.private_network)

    @property
    def _has_image_of_options(self) -> bool:
        """Whether an option names the image, so that the task need not define one."""
        return False

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Get the image, building it if the cache lacks it, and start the sandbox.

        Raises:
            MissingDependencyError: A program or a right is missing, possibly only for a task with a public network.
            SandboxStartError: The image is not available, the sandbox does not come up, or the set-up fails.
            TaskError: The image is unhealthy, or lacks something that the task declares.
        """
        if self._is_started:
            raise SandboxStartError(f"this {self.type()} sandbox was started before: make a new environment instead")
        self._is_started = True
        reaper.reap_in_background(in_docker=False)
        try:
            if not self._has_image:
                await self.build_image(force_build=force_build)
            await self._bring_up()
            if not self._is_copy:
                await require_workdir(self)
        except BaseException:
            await self.stop(delete=True)
            raise

    async def build_image(self, *, force_build: bool) -> None:
        """Get the image, building it if the cache lacks it, ahead of the start; :meth:`stop` lets it go.

        Raises:
            MissingDependencyError, SandboxStartError: As :meth:`start`.
        """
        self.preflight()  # it remembers what took long, and the registry's or Harbor's checks came before
        allow_open_files(OPEN_FILES_OF_CALLER)
        _outweigh_sandboxes()
        await self._provide_image(force_build=force_build)
        self._has_image = True

    @abstractmethod
    async def _provide_image(self, *, force_build: bool) -> None:
        """Get what :meth:`_bring_up` starts from."""

    @abstractmethod
    async def _bring_up(self) -> None:
        """Set ``_image``, call :meth:`_start_sandbox`, and make it ready; after a failure :meth:`stop` is called."""

    async def _start_sandbox(self, config: SupervisorConfig, *, copied: Dump | None = None) -> None:
        self._sandbox = SupervisedSandbox(self.type())
        if self._options.processor_set:
            self._processors = processors.take(self._effective_cpus)
            config = config._replace(limits=config.limits._replace(processors=self._processors))
        if (name := self._options.host_name) != HOST_NAME == config.host_name:
            hosts = f"127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
            own = {"hosts": hosts, "hostname": f"{name}\n"}
            config = config._replace(host_name=name, etc={**config.etc, **own})
        await self._sandbox.start(config, copied=copied)

    def _supervisor_config(self, directories: dict[str, int | None], *, filters: tuple[str, ...]) -> SupervisorConfig:
        """Return what a sandbox is to be, apart from its image: by the task, the options and what this machine can do.

        Args:
            directories: Made in it where they are missing, root's, and given their mode; None leaves theirs.
            filters: System call filters.
        """
        now, *later = map(self._network_of, (self.network_policy, *self._phase_policies))
        is_public = self.network_policy.network_mode == NetworkMode.PUBLIC
        limits = self._limits()
        return SupervisorConfig(
            parent=os.getpid(),
            layers=(),
            mountpoint=str(mountpoint()),
            storage_bytes=self._storage_mb << 20,
            slirp4netns=find_program(NETWORK_PROGRAM),
            has_network=now.is_public,
            may_have_network=any(network.is_public for network in (now, *later)),
            allowlist=now.allowlist,
            may_have_allowlist=any(network.allowlist is not None for network in (now, *later)),
            name_server=NAME_SERVER,
            etc={},
            directories=directories,
            is_rootless=rootless.is_rootless(),
            has_own_ids=False,
            high_ids=(),
            filters=filters,
            closed_networks=closed_networks(has_private=self._options.private_network),
            cgroups=cgroups.groups_for(cgroups.group_name(), limits),
            limits=limits,
            shares_network=is_public and self._options.network == "machine",
        )

    def _limits(self) -> CgroupLimits:
        memory_mb = self._effective_memory_mb
        times = [time for time in (self._effective_cpus, self._options.processor_time) if time is not None]
        return CgroupLimits(
            memory_mb << 20 if memory_mb else None, min(times, default=None), self._options.max_processes
        )

    def _network_of(self, policy: NetworkPolicy) -> NetworkChange:
        has_one = self._options.has_network(policy, self.environment_name)
        if not has_one or policy.network_mode == NetworkMode.PUBLIC:
            return NetworkChange(is_public=has_one, allowlist=None)
        listed = allowlist(policy.allowed_hosts, has_private=self._options.private_network)
        return NetworkChange(is_public=False, allowlist=listed)

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if network_policy.network_mode == NetworkMode.PUBLIC and self._options.network == "machine":
            raise SandboxError(f"{self.type()} sandboxes get this machine's network at their start or never")
        await self._running().switch_network(self._network_of(network_policy))

    @override
    async def stop(self, delete: bool) -> None:
        """End the sandbox with all its processes and files. Idempotent, and safe in any state.

        ``delete`` has no effect: a sandbox leaves nothing that could be kept; its image stays.

        Raises:
            SandboxTimeoutError: It did not end in time.
        """
        sandbox, self._sandbox = self._sandbox, None
        hold, self._hold = self._hold, None
        if sandbox is not None or hold is not None:
            self._ending = asyncio.ensure_future(self._end(sandbox, hold))
        elif self._ending is None or self._ending.done():
            return
        # Neither a cancellation nor a second call returns before the sandbox is gone.
        await shielded(self._ending)

    async def _end(self, sandbox: SupervisedSandbox | None, hold: Hold | None) -> None:
        entrypoint, self._entrypoint = self._entrypoint, None
        try:
            if sandbox is not None:
                await sandbox.stop()
        finally:
            given_back, self._processors = self._processors, ()
            processors.give_back(given_back)
            # After the sandbox's end, as its image may be pruned from here on.
            if hold is not None:
                hold.release()
            if entrypoint is not None:
                await entrypoint.stop()

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run ``command`` in bash (sh if the image has no bash) and wait for its exit.

        Processes that it leaves running live on, even if they hold the output open. Its stdin is empty. A killed
        command's return code is 128 + the signal.

        Args:
            command: Shell text, of any length.
            cwd: Working directory; None is the task's ``workdir``, else the option's, else the image's.
            env: Variables on top of the image's, the task's and the trial's.
            timeout_sec: Seconds after which the command's process group is killed.
            user: Name or uid, optionally with ``:group``, of the sandbox's own accounts; None is the default user.

        Raises:
            SandboxError: No such user or directory in the sandbox.
            SandboxLostError: The sandbox is not running.
            ExecTimeoutError: The time was up.
        """
        emit = self._output_callback()
        request = self._request(command, cwd=cwd, env=env, user=user)
        try:
            finished = await self._running().run(
                request, timeout_sec=timeout_sec, on_chunk=None if emit is None else text_chunks(emit)
            )
        except SandboxTimeoutError as exc:
            raise ExecTimeoutError(str(exc)) from None
        return ExecResult(
            stdout=finished.stdout.text(), stderr=finished.stderr.text(), return_code=finished.return_code
        )

    async def exec_pipes(self, command: str, *, user: str | int | None = None, directory: str = "") -> PipedCommand:
        """Start ``command`` in the sandbox and return while it runs, its input and output as streams.

        It serves the purpose of :meth:`exec_argv` without a process of this machine. The command ends when it is
        killed, with the sandbox, and with its input if it reads that.

        Args:
            command: Shell text.
            user: The process's user.
            directory: Made first by that user for himself alone, where he can.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        return await self._running().open(self._request(command, user=user)._replace(directory=directory))

    def exec_argv(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> list[str]:
        """Return an argument vector for a process of this machine that runs ``command`` in the sandbox.

        For a caller that needs a long-lived process with pipes or a terminal of its own: the command has the starter's
        stdio, its exit status becomes the process's, TERM, INT and HUP reach it, and it ends with the process and with
        the sandbox. Give it pipes or a terminal of its own: the sandbox could open and write to a file of the host, or
        type into your own terminal. The command sees the sandbox's own files, even during a verifier's view. The
        arguments are those of :meth:`exec`. The exit status is 125 if the sandbox is gone.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        self._has_argv_outside = True
        return self._running().enter_argv(self._request(command, cwd=cwd, env=env, user=user))

    # --- directories, without programs of the sandbox: supervisor/program/grading/directories.py ----------------------

    @override
    async def is_dir(self, path: str, user: str | int | None = None) -> bool:
        """Return whether a user finds a directory at a path, through links too. The arguments are those of exec.

        Raises:
            SandboxError: No such user in the sandbox.
            SandboxLostError: The sandbox is not running.
        """
        if path in self._known_empty and self._user(user).split(":")[0] in ("root", "0"):
            return True
        return (await self._path_kind(path, user))["is_dir"]

    @override
    async def is_file(self, path: str, user: str | int | None = None) -> bool:
        """Return whether a user finds a regular file at a path, through links too; as :meth:`is_dir`."""
        return (await self._path_kind(path, user))["is_file"]

    @override
    async def ensure_dirs(self, dirs: Sequence[str | PurePath], *, chmod: bool = True) -> ExecResult | None:
        """Make missing directories, as root and writable for all; without ``chmod`` as the default user.

        As root only root's own links are followed. A failure is in the result, with return code 1.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        user = "root" if chmod else self._user(None)
        paths = self._absolute(dirs)
        return await self._change("ensure_dirs", {"directories": paths, "user": user, "opens": chmod}) if dirs else None

    @override
    async def empty_dirs(self, dirs: Sequence[str | PurePath], *, chmod: bool = True) -> ExecResult | None:
        """Make or empty directories, as root, replacing files and links with their names; as :meth:`ensure_dirs`.

        Without ``chmod`` an existing one keeps its mode.
        """
        paths = self._absolute(dirs)
        return await self._change("empty_dirs", {"directories": paths, "opens": chmod}) if dirs else None

    @override
    async def reset_dirs(
        self,
        *,
        remove_dirs: Sequence[str | PurePath],
        create_dirs: Sequence[str | PurePath],
        chmod_dirs: Sequence[str | PurePath] | None = None,
    ) -> ExecResult:
        """Remove entries, make directories and make some writable for all, as root; as :meth:`ensure_dirs`."""
        lists = {"remove": remove_dirs, "create": create_dirs, "open_to_all": chmod_dirs or ()}
        return await self._change("reset_dirs", {name: self._absolute(dirs) for name, dirs in lists.items()})

    async def _path_kind(self, path: str, user: str | int | None) -> dict[str, Any]:
        [absolute] = self._absolute([path])
        arguments = {"path": absolute, "user": self._user(user)}
        return await self._running().clean_up("path_kind", arguments, timeout_sec=_LOOK_TIMEOUT_SEC)

    async def _change(self, work: str, arguments: Mapping[str, Any]) -> ExecResult:
        self._empty.clear()  # it may remove one
        answer = await self._running().clean_up(work, arguments, timeout_sec=_DIRECTORIES_TIMEOUT_SEC)
        problem: str = answer["problem"]
        return ExecResult(stdout="", stderr=problem and f"{problem}\n", return_code=1 if problem else 0)

    def _absolute(self, paths: Sequence[str | PurePath]) -> list[str]:
        workdir = self._default_workdir(self._started_image())
        return [posixpath.join(workdir, str(path)) for path in paths]

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Do one part of an episode's clean-up, without programs of the sandbox.

        Args:
            work: ``baseline``, ``stop``, ``open_grading``, ``close_grading`` or ``reset_verifier_dirs``: a function of
                the supervisor's ``cleanup`` module, except ``close_grading``.
            arguments: The function's arguments.
            timeout_sec: Seconds after which it is killed.

        Returns:
            The function's results, and ``oom_kills``: :attr:`memory_kills`.

        Raises:
            SandboxError: It failed.
            SandboxLostError: The sandbox is not running.
            SandboxTimeoutError: The time was up.
        """
        if work == "baseline" and self._image is not None:
            arguments = {**arguments, "directories": list(self._directories(self._image))}
        if work == "stop" and self._is_vacant and not arguments["leftovers"]:
            return {"stopped": 0, "left": 0, "kept": 0, "names": [], "oom_kills": self.memory_kills}
        commands = self._running().commands
        answer = await self._running().clean_up(work, arguments, timeout_sec=timeout_sec)
        if work == "open_grading":
            self._empty = {*self._carried_logs()}.intersection(answer["empty"])
        if work == "stop" and not (arguments["own"] or answer["left"] or answer["kept"]):
            self._commands_before_vacancy = commands
        return {**answer, "oom_kills": self.memory_kills}

    @property
    def _is_vacant(self) -> bool:
        """Whether no process is inside: a stop has spared none, and no command was started since."""
        return self._commands_before_vacancy == self._running().commands and not self._has_argv_outside

    @property
    def memory_kills(self) -> int | None:
        """Processes that the sandbox's memory limit has killed so far; None if they are not counted."""
        return self._running().memory_kills()

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a pristine view: a fresh overlay on the image.

        It has the image's /tests, /tmp and /logs/verifier, and of the sandbox's own files these paths and Harbor's
        other log directories, each as it is: absent if it is absent, or if a link leads to it. setuid programs give no
        rights there. Processes and network are the sandbox's.

        Args:
            verify_paths: Absolute paths of directories or regular files.

        Raises:
            SandboxError: The kernel refuses, or the overlay is not the kernel's.
            SandboxLostError: The sandbox is not running.
        """
        await self._running().enter_view([*map(str, verify_paths), *self._carried_logs()], rank=VERIFIER)

    async def enter_shared_view(self, directories: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a view of the sandbox's own files, with these directories empty and its own.

        As :class:`harbor_gym.sandboxes.extensions.SupportsSharedView` says; ``leave_verifier_view`` leaves it.

        Raises:
            SandboxError: The kernel refuses, or a directory's path leads over a link.
            SandboxLostError: The sandbox is not running.
        """
        await self._running().enter_view((), apart=[str(path) for path in directories], rank=VERIFIER)

    async def leave_verifier_view(self) -> None:
        """Switch every further call back to the sandbox's own files, and drop the view. Idempotent.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        await self._running().leave_view()

    async def enter_set_up_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a view like :meth:`enter_verifier_view`'s, which also has the default workdir.

        The policy's processes can't access those of the view, nor these the verifier's.

        Args:
            verify_paths: Absolute paths of directories or regular files.

        Raises:
            SandboxError: The kernel refuses, or the overlay is not the kernel's.
            SandboxLostError: The sandbox is not running.
        """
        carried = [PurePosixPath(path) for path in (*verify_paths, *self._carried_logs())]
        workdir = PurePosixPath(self._default_workdir(self._started_image()))
        is_apart = workdir != PurePosixPath("/") and not any(workdir.is_relative_to(path) for path in carried)
        also = [str(workdir)] if is_apart else []
        paths = [str(path) for path in carried if not also or not path.is_relative_to(workdir)]
        await self._running().enter_view(paths, also=also, rank=SERVICE)

    async def leave_set_up_view(self, *, timeout_sec: float) -> str:
        """Copy the changes made in the view to the sandbox's own files, and switch every further call back to them.

        No program of the sandbox runs, and no link is followed. Not copied are /tmp, /tests, /logs/verifier, sockets,
        and attributes other than owner, mode and time.

        Args:
            timeout_sec: Seconds after which the attempt ends.

        Returns:
            Why some files could not be copied, for example for lack of room; empty if all were.

        Raises:
            SandboxError: It failed.
            SandboxLostError: The sandbox is not running.
            SandboxTimeoutError: The time was up.
        """
        return await self._running().merge_view(timeout_sec=timeout_sec)

    def _carried_logs(self) -> list[str]:
        return [target for target in self._mount_targets(writable_only=True) if not _is_of_verifier(target)]

    async def written_paths(self) -> Sequence[PurePosixPath]:
        """Return the paths that differ from the image, at most some thousand: files, links, empty directories, and
        deleted entries.

        Raises:
            SandboxError: They can't be listed.
            SandboxLostError: The sandbox is not running.
        """
        return [PurePosixPath(path) for path in await self._running().written_paths()]

    async def is_up(self) -> bool:
        """Return whether the sandbox itself, with its first process and its supervisor, still runs."""
        return self._sandbox is not None and self._sandbox.is_running

    @property
    def _known_empty(self) -> set[str]:
        """The log directories that were empty when grading was opened, in each view, while no process is inside."""
        return self._empty if self._is_vacant else set()

    @override
    def _way(self) -> Way:
        return knowing_empty(self._running().carry, self._known_empty)

    @property
    def supervised(self) -> SupervisedSandbox:
        """The running sandbox behind this environment, for what is joined to it.

        Raises:
            SandboxLostError: It is not running.
        """
        return self._running()

    def _running(self) -> SupervisedSandbox:
        if self._sandbox is None:
            raise SandboxLostError(f"the {self.type()} sandbox of {self.environment_name} is not running")
        return self._sandbox

    def _default_workdir(self, image: ImageSettings) -> str:
        return self.task_env_config.workdir or self._options.workdir or image.workdir

    def _request(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> CommandSpec:
        image = self._started_image()
        return CommandSpec(
            command=command,
            user=self._user(user),
            cwd=cwd or self._default_workdir(image),
            env={**default_env(image), **(self._merge_env(env) or {})},
        )

    def _user(self, user: str | int | None) -> str:
        resolved = self._resolve_user(user)
        return self._started_image().user if resolved is None else str(resolved)

    def _started_image(self) -> ImageSettings:
        if self._image is None:
            raise SandboxLostError(f"the {self.type()} sandbox of {self.environment_name} is not running")
        return self._image

    def _directories(self, image: ImageSettings) -> dict[str, int | None]:
        """Return the directories of a sandbox at its start, and their modes; log folders are writable for all."""
        return {**self._image_directories(image), **dict.fromkeys(self._mount_targets(writable_only=True), 0o777)}

    def _image_directories(self, image: ImageSettings) -> dict[str, int | None]:
        """Return those of them that don't depend on the trial."""
        # buildah leaves out a WORKDIR that no later instruction uses; Docker makes it, and each VOLUME.
        own = self._options.workdir
        made = (*((own,) if own else ()), image.workdir, *image.volumes)
        return {"/tmp": 0o1777, **dict.fromkeys(made)}

    async def _make_ready(self, image: ImageSettings) -> None:
        """Copy the task's files in, start the image's ENTRYPOINT, wait for the services that it leaves running, and for
        its HEALTHCHECK.

        Raises:
            SandboxStartError: The ENTRYPOINT ended before it had executed its arguments.
            TaskError: The image has no account for its USER, or the HEALTHCHECK fails as often as the image allows.
        """
        if image.user != "root" and not _SMALL_IDS.fullmatch(image.user):
            try:
                await self._path_kind("/", image.user)
            except (SandboxLostError, SandboxTimeoutError):
                raise
            except SandboxError as exc:
                raise no_account(image.user, str(exc)) from exc
        await self._upload_environment_dir_after_start()  # as the image's user
        if image.entrypoint:
            await self._start_entrypoint(image)
        await self._await_health(image)

    async def _start_entrypoint(self, image: ImageSettings) -> None:
        request = self._request("", user=image.user)

        def run(argv: Sequence[str]) -> Awaitable[PipedCommand]:
            return self._running().open(
                request._replace(command=shlex.join(argv), argv=tuple(argv), joins_outputs=True)
            )

        self._entrypoint = Entrypoint(image.entrypoint, self.trial_paths.trial_dir / "entrypoint.log")
        await self._entrypoint.start(run)
        self._services = await await_services(self._running().clean_up)

    @property
    def services_note(self) -> str | None:
        """A sentence on how long the start waited for the ENTRYPOINT's services; None if none of them runs on."""
        return None if self._services is None else self._services.note

    async def _await_health(self, image: ImageSettings) -> None:
        """Wait until the image's HEALTHCHECK succeeds; return at once if it has none.

        Raises:
            TaskError: It fails as often as the image allows.
        """
        if image.healthcheck is not None:
            await await_health(image.healthcheck, functools.partial(self._check_health, image))

    async def _check_health(self, image: ImageSettings, limit_sec: float) -> tuple[int, str]:
        assert image.healthcheck is not None
        request = self._request("HEALTHCHECK", user=image.user, cwd=image.workdir)
        request = request._replace(argv=image.healthcheck.argv, joins_outputs=True)
        try:
            finished = await self._running().run(request, timeout_sec=limit_sec)
        except SandboxTimeoutError:
            return -1, f"no answer within {limit_sec:g} s"
        except SandboxLostError:
            raise
        except SandboxError as exc:
            return -1, str(exc)
        return finished.return_code, finished.stdout.text()


def default_env(image: ImageSettings) -> dict[str, str]:
    """Return the environment of a command before the task's and the caller's variables."""
    return {"PATH": _DEFAULT_PATH, **image.env}


def _is_of_verifier(target: str) -> bool:
    return f"{posixpath.normpath(target)}/".startswith("/logs/verifier/")
