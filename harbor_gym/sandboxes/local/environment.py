"""A Harbor environment without a daemon: one private file system and one set of namespaces per sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shlex
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, override

from harbor.environments.base import ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkPolicy

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import Hold
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import (
    MissingDependencyError,
    SandboxLostError,
    SandboxStartError,
    SandboxTimeoutError,
    TaskError,
    UsageError,
)
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.archive.environment import CarriesFiles
from harbor_gym.sandboxes.archive.transfers import Way
from harbor_gym.sandboxes.images.build import Image, ImageSource, hold_image
from harbor_gym.sandboxes.local import cgroups, seccomp
from harbor_gym.sandboxes.local.client import Request, SupervisedSandbox
from harbor_gym.sandboxes.local.entrypoint import Entrypoint
from harbor_gym.sandboxes.local.options import DEFAULT_MAX_PROCESSES, Limits, LocalOptions
from harbor_gym.sandboxes.local.snapshots import ImageOptions, Setup, hold_set_up
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import text_chunks
from harbor_gym.sandboxes.setup_command import is_of_verifier
from harbor_gym.sandboxes.tools import find_program

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HARBOR_LOGS = "/logs/"
_AUTOGROUP_NICE = -10
TOOLS = {"buildah": "buildah", "unshare": "util-linux", "setpriv": "util-linux"}
"""Program → the Debian package that holds it."""


@functools.cache
def _outweigh_sandboxes() -> None:
    """Give this process a larger share of the processor than each sandbox's session, once.

    Linux shares time among sessions (autogroups), so 64 busy sandboxes would starve the event loop that serves them:
    its lag's 99th percentile was 147 ms so, and 4 ms with this weight. Refused to ordinary users, and harmless then.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_AUTOGROUP_NICE))


class LocalExecTimeoutError(SandboxTimeoutError, RuntimeError):
    """A command ran out of time and was killed. A ``RuntimeError`` too, as Harbor's own environments raise."""


class LocalEnvironment(CarriesFiles):
    """Run a task in namespaces of this machine: no daemon, nothing of the host visible, nothing left behind.

    The root file system is the task's image, read-only, under an overlay in memory (``storage_mb``, 2 GiB by default,
    beside ``memory_mb``; at most one file for each 8 KiB of it). Processes, mounts, IPC, host name, network and cgroups
    are namespaces of their own. Root inside is root without the capabilities to mount, to make devices or to trace.

    **Limits** hold for all processes of a sandbox together, by control groups of either version: ``memory_mb`` (files
    not counted; a tolerance of 64 MiB or an eighth), ``cpus``, and the option ``max_processes`` (1024). Where memory
    runs short the kernel kills the largest process and counts it in the sandbox's /sys/fs/cgroup, as in a container.
    Where no control groups can be made, ``memory_mb`` bounds each process by itself, the log reports it once, and a
    resource policy of Harbor's that asks for enforcement is refused.

    **Images** come from the task's Dockerfile or ``docker_image``, which may be ``oci-archive:PATH`` or
    ``docker-archive:PATH`` too, or from the options ``image`` (the same names) or ``rootfs`` (a directory, or a tar).
    They are kept layer by layer: what several have in common is there once. A ``setup_command`` runs once, in a sandbox
    of its own with the image's environment; every sandbox then starts from the files that it left.

    **Network**: ``no-network`` is loopback only. ``public`` goes through slirp4netns, a network stack without rights on
    the machine: connections out, none in. A packet filter outside the sandbox's reach refuses IPv6, the addresses of
    cloud metadata, the machine's loopback and, unless the option ``private_network`` is true, private networks and the
    machine's own addresses. Without slirp4netns and libnftables such a task is refused, unless the option ``network``
    is ``"none"``, which runs every task without. Phases may differ. Allowlists are refused. Images are built with the
    machine's network.

    **System calls** that ordinary programs do without are refused: tracing (no gdb or strace), mounts, namespaces, BPF,
    io_uring, libaio, kernel keys, and everything of 32-bit programs. setuid programs of the image work, and give the
    rights of the sandbox's root.

    **Who root is**: each sandbox has a user namespace of its own with 65,536 ids that nobody else has, so root inside
    is nobody on the machine. Where the kernel or the cache's file system can't show an image's files with other owners
    (``harbor-gym doctor`` reports it), and for an ordinary user, root inside is the caller, confined in namespaces.

    Needs Linux with buildah, libseccomp and the OCI seccomp profile that buildah's package brings, and root or an
    ordinary user with subordinate ids (subuid(5)). Compose tasks, GPUs and host mounts of the user's own are refused.

    The environment belongs to the event loop that started it. When the process ends, however, its sandboxes go too.
    """

    def __init__(
        self,
        *args: Any,
        max_processes: int = DEFAULT_MAX_PROCESSES,
        network: Literal["task", "none"] = "task",
        private_network: bool = False,
        image: str | None = None,
        rootfs: str | Path | None = None,
        setup_command: str | None = None,
        build_dockerfile: bool = False,
        workdir: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare a sandbox; Harbor's own arguments go to Harbor's base class.

        Args:
            args: Harbor's.
            max_processes: Processes and threads of the sandbox, at most.
            network: ``"task"`` gives what the task asks for, ``"none"`` only loopback.
            private_network: Let a public network reach private networks and this machine's own addresses.
            image: An image by name, or an archive of one, instead of the task's own.
            rootfs: A directory, or a tar, that is the root file system instead. It is copied once.
            setup_command: Shell text that root runs once for all sandboxes of this image.
            build_dockerfile: Build the task's Dockerfile, if it has one, even where it names a ``docker_image``.
            workdir: Working directory where the task names none, instead of the image's.
            kwargs: Harbor's.

        Raises:
            UsageError: An option has no such value.
        """
        if workdir is not None and not workdir.startswith("/"):
            raise UsageError(f"sandbox option workdir: {workdir!r} is no absolute path")
        self._workdir = workdir
        self._options = LocalOptions(max_processes, network, private_network)
        self._image_options = ImageOptions(
            image, None if rootfs is None else Path(rootfs), setup_command, build_dockerfile
        )
        self._sandbox: SupervisedSandbox | None = None
        self._image: Image | None = None
        self._hold: Hold | None = None
        self._entrypoint: Entrypoint | None = None
        self._ending: asyncio.Future[None] | None = None
        self._is_started = False
        self._phase_policies: tuple[NetworkPolicy, ...] = tuple(kwargs.get("phase_network_policies") or ())
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "local"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=False, disable_internet=True, dynamic_network_policy=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return what this machine's control groups can enforce. Makes and removes empty ones, once per process."""
        if sys.platform != "linux":
            return EnvironmentResourceCapabilities()
        places = cgroups.places()
        return EnvironmentResourceCapabilities(cpu_limit="cpu" in places, memory_limit="memory" in places)

    @property
    def image_substitutions(self) -> tuple[str, ...]:
        """Base images that were not available, and what stands in for each. Empty before :meth:`start`."""
        return self._image.substitutions if self._image is not None else ()

    @classmethod
    @override
    def preflight(cls) -> None:
        """Check that sandboxes can start on this machine.

        Raises:
            MissingDependencyError: Not Linux, no namespaces, or a program is missing; the message states how to get it.
        """
        if sys.platform != "linux":
            raise MissingDependencyError("local sandboxes need Linux namespaces: use another sandbox (--env docker)")
        missing = {package: None for tool, package in TOOLS.items() if find_program(tool) is None}
        if missing:
            names = " ".join(missing)
            raise MissingDependencyError(f"local sandboxes need {names}: apt-get install -y {names}")
        if lacking := seccomp.missing_profile():
            raise MissingDependencyError(f"local sandboxes need a system call filter: {lacking}")
        if rootless.is_rootless():
            refusal, fix = rootless.refusal()
            if refusal:
                raise MissingDependencyError(f"local sandboxes of an ordinary user: {refusal}: {fix}, or --env docker")
        elif refusal := rootless.namespace_refusal():
            raise MissingDependencyError(
                f"local sandboxes need namespaces, which this machine refuses ({refusal}); inside a container, "
                "start that with --privileged, or use another sandbox"
            )

    @override
    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise TaskError(
                f"{self.environment_dir / COMPOSE_FILE_NAME}: local sandboxes run one container and no Compose: "
                "use --env docker for this task"
            )
        chosen = self._chosen_image
        if chosen.image is None and chosen.rootfs is None:
            require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        foreign = [target for target in self._mount_targets() if not target.startswith(_HARBOR_LOGS)]
        if foreign:
            raise TaskError(
                f"local sandboxes mount nothing of the host (asked for: {', '.join(foreign)}): use --env docker"
            )

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Build the image if the cache has none, and start the sandbox.

        Raises:
            MissingDependencyError: A program is missing; for a task with a public network, slirp4netns too.
            SandboxStartError: The image can't be built, or the sandbox does not come up.
        """
        if self._is_started:
            raise SandboxStartError("this local sandbox was started before: make a new environment instead")
        self._is_started = True
        await asyncio.to_thread(self.preflight)
        _outweigh_sandboxes()
        reaper.reap_in_background(in_docker=False)
        try:
            self._image, self._hold = await self._hold_image(force_build=force_build)
            limits = self._limits()
            self._sandbox = SupervisedSandbox()
            workdirs = (self._request("", cwd=None, env=None, user=None).cwd, self._image.workdir)
            shared = self._mount_targets(writable_only=True)
            await self._sandbox.start(self._image.directories, limits, _directories(workdirs, shared))
            await self._upload_environment_dir_after_start()
            await self._start_entrypoint(self._image)
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _start_entrypoint(self, image: Image) -> None:
        if not image.entrypoint:
            return
        request = self._request("", cwd=None, env=None, user=image.user)

        def run(argv: Sequence[str]) -> Awaitable[PipedCommand]:
            shown = replace(request, command=shlex.join(argv), argv=tuple(argv), joins_outputs=True)
            return self._running().open(shown)

        self._entrypoint = Entrypoint(image.entrypoint, self.trial_paths.trial_dir / "entrypoint.log")
        await self._entrypoint.start(run)

    async def _hold_image(self, *, force_build: bool) -> tuple[Image, Hold]:
        config, chosen = self.task_env_config, self._chosen_image
        prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir,
            docker_image=config.docker_image,
            force_build=force_build or chosen.build_dockerfile,
        )
        source = ImageSource(
            self.environment_dir,
            docker_image=chosen.image or (config.docker_image if prebuilt else None),
            rootfs=chosen.rootfs,
        )
        timeout_sec = config.build_timeout_sec
        image, held = await hold_image(source, build_timeout_sec=timeout_sec, force_build=force_build)
        if chosen.setup_command is None:
            return image, held
        try:
            workdir = config.workdir or self._workdir or image.workdir
            setup = Setup(chosen.setup_command, _directories([workdir]), workdir, _with_path(image.env))
            limits = self._limits()
            return await hold_set_up(image, setup, limits, timeout_sec=timeout_sec)
        finally:
            held.release()

    @property
    def _chosen_image(self) -> ImageOptions:
        """The options' image; a separate verifier's sandbox has an image of its own, which no option sets."""
        return ImageOptions() if is_of_verifier(self.session_id) else self._image_options

    def _limits(self) -> Limits:
        return self._options.limits(
            storage_mb=self._storage_mb,
            memory_mb=self._effective_memory_mb,
            cpus=self._effective_cpus,
            has_network=self._has_network(self.network_policy),
            may_have_network=any(map(self._has_network, self._phase_policies)),
        )

    def _has_network(self, policy: NetworkPolicy) -> bool:
        return self._options.has_network(policy, self.environment_name)

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        is_open = self._has_network(network_policy)
        await self._running().switch_network(is_open=is_open)

    @override
    async def stop(self, delete: bool) -> None:
        """End the sandbox with everything in it. Idempotent, and safe in any state.

        ``delete`` changes nothing: a sandbox leaves nothing that could be kept; its image stays in the cache.

        Raises:
            SandboxTimeoutError: It had to be killed the hard way.
        """
        entrypoint, self._entrypoint = self._entrypoint, None
        sandbox, self._sandbox = self._sandbox, None
        hold, self._hold = self._hold, None
        if sandbox is not None or hold is not None:
            self._ending = asyncio.ensure_future(_end(sandbox, hold, entrypoint))
        elif self._ending is None or self._ending.done():
            return
        # Neither a cancellation nor a second call returns before the sandbox is gone: it takes milliseconds.
        await shielded(self._ending)

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
        """Run ``command`` in bash (sh where the image has no bash) and wait for its exit.

        What it leaves running lives on, even if it holds the output open. Its stdin is empty. A killed command's
        return code is 128 + the signal.

        Args:
            command: Shell text, of any length.
            cwd: Working directory; None is the task's ``workdir``, else the option's, else the image's.
            env: Variables on top of the image's, the task's and the trial's.
            timeout_sec: After so many seconds the command's process group is killed.
            user: Name or uid, with ``:group`` if need be, of the sandbox's own accounts; None is the default user.

        Raises:
            SandboxError: No such user or directory in the sandbox.
            SandboxLostError: The sandbox is not running.
            LocalExecTimeoutError: The time was up.
        """
        emit = self._output_callback()
        request = self._request(command, cwd=cwd, env=env, user=user)
        try:
            finished = await self._running().run(
                request, timeout_sec=timeout_sec, on_chunk=None if emit is None else text_chunks(emit)
            )
        except SandboxTimeoutError as exc:
            raise LocalExecTimeoutError(str(exc)) from None
        return ExecResult(
            stdout=finished.stdout.text(), stderr=finished.stderr.text(), return_code=finished.return_code
        )

    def exec_argv(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the sandbox.

        For whoever needs a long-lived process with pipes or a terminal of its own: the command has the starter's
        stdio, its exit status becomes the process's, TERM, INT and HUP reach it, and it ends with the process and with
        the sandbox. Give it pipes or a terminal of its own: a file of the host handed in could be opened again and
        written by the sandbox, and your own terminal could be typed into. The arguments mean what they mean for
        :meth:`exec`. 125 is the status when the sandbox is gone.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        return self._running().enter_argv(self._request(command, cwd=cwd, env=env, user=user))

    async def exec_pipes(self, command: str, *, user: str | int | None = None) -> PipedCommand:
        """Start ``command`` in the sandbox and return while it runs, its input and output as streams.

        What :meth:`exec_argv` is for, without a process of this machine in between. The command ends with its input if
        it heeds that, when it is killed, and with the sandbox.

        Args:
            command: Shell text.
            user: Whose process it is.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        return await self._running().open(self._request(command, cwd=None, env=None, user=user))

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Do one of the works by which an episode cleans up, by no program of the sandbox's.

        Args:
            work: ``baseline``, ``stop`` or ``reset_verifier_dirs``: a function of the supervisor's ``cleanup`` module.
            arguments: What it is called with.
            timeout_sec: After so long it is killed.

        Returns:
            What it returned, and ``oom_kills``: the processes that the sandbox's memory limit has killed so far; None
            where nothing counts them.

        Raises:
            SandboxError: It failed.
            SandboxLostError: The sandbox is not running.
            SandboxTimeoutError: The time was up.
        """
        sandbox = self._running()
        answer = await sandbox.clean_up(work, arguments, timeout_sec=timeout_sec)
        return {**answer, "oom_kills": sandbox.memory_kills()}

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a pristine view: a fresh overlay of the image's layers.

        In it are /tests, /tmp and /logs/verifier as the image has them, and of the sandbox's own files these paths and
        Harbor's other log directories, each as it is: absent where it is absent, or where a link leads to it. setuid
        programs give nothing there. Processes and network are the sandbox's.

        Args:
            verify_paths: Absolute paths of directories or regular files.

        Raises:
            SandboxError: The kernel refuses.
            SandboxLostError: The sandbox is not running.
        """
        logs = [target for target in self._mount_targets(writable_only=True) if not _is_of_verifier(target)]
        await self._running().enter_view([*map(str, verify_paths), *logs])

    async def leave_verifier_view(self) -> None:
        """Switch every further call back to the sandbox's own files, and drop the view. Idempotent.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        await self._running().leave_view()

    async def written_paths(self) -> Sequence[PurePosixPath]:
        """Return the paths that differ from the image, some thousand at most: files, links, empty directories, and
        what was deleted.

        Raises:
            SandboxError: They can't be listed.
            SandboxLostError: The sandbox is not running.
        """
        return [PurePosixPath(path) for path in await self._running().written_paths()]

    async def is_up(self) -> bool:
        """Return whether the sandbox itself, its first process and what serves it, is there, whatever runs in it."""
        return self._sandbox is not None and self._sandbox.is_running

    def _running(self) -> SupervisedSandbox:
        if self._sandbox is None:
            raise SandboxLostError(f"the local sandbox of {self.environment_name} is not running")
        return self._sandbox

    def _request(self, command: str, *, cwd: str | None, env: dict[str, str] | None, user: str | int | None) -> Request:
        if self._image is None:
            self._running()
        assert self._image is not None
        resolved = self._resolve_user(user)
        return Request(
            command=command,
            user=self._image.user if resolved is None else str(resolved),
            cwd=cwd or self.task_env_config.workdir or self._workdir or self._image.workdir,
            env={**_with_path(self._image.env), **(self._merge_env(env) or {})},
        )

    @override
    def _way(self) -> Way:
        return self._running().carry


def _directories(workdirs: Iterable[str], shared: Iterable[str] = ()) -> dict[str, int | None]:
    """Return the directories that a sandbox has from its start, and their modes; ``shared`` ones all may write."""
    # buildah leaves out a WORKDIR that no later instruction uses; Docker makes it.
    return {"/tmp": 0o1777, **dict.fromkeys(workdirs), **dict.fromkeys(shared, 0o777)}


def _is_of_verifier(target: str) -> bool:
    verifier_dir = PurePosixPath(_HARBOR_LOGS) / "verifier"
    return PurePosixPath(target).is_relative_to(verifier_dir)


def _with_path(env: dict[str, str]) -> dict[str, str]:
    return {"PATH": _DEFAULT_PATH, **env}


async def _end(sandbox: SupervisedSandbox | None, hold: Hold | None, entrypoint: Entrypoint | None) -> None:
    try:
        if sandbox is not None:
            await sandbox.stop()
        if entrypoint is not None:
            await entrypoint.stop()
    finally:
        # Last: what it stood on may be pruned from here on.
        if hold is not None:
            hold.release()
