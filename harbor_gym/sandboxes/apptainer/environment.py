"""A Harbor environment on Apptainer: no daemon, no root, nothing needed in the image, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, override

from harbor.environments.base import ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode

from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import SandboxLostError, SandboxStartError, TaskError
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.apptainer.commands import run_command
from harbor_gym.sandboxes.apptainer.container import Container, ContainerOptions
from harbor_gym.sandboxes.apptainer.options import checked_options
from harbor_gym.sandboxes.apptainer.programs import require_all
from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.apptainer.sif.store import SifSource, provide_sif
from harbor_gym.sandboxes.apptainer.watchdog import Watchdog
from harbor_gym.sandboxes.archive.environment import CarriesFiles
from harbor_gym.sandboxes.archive.transfers import Way
from harbor_gym.sandboxes.local import seccomp
from harbor_gym.sandboxes.local.supervisor.messages import CommandSpec
from harbor_gym.sandboxes.pipes import text_chunks
from harbor_gym.sandboxes.setup_command import is_of_verifier, require_success, setting_up

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HARBOR_LOGS = "/logs/"
_FILES, _SET_UP = "files", "setup.sh"
_NO_VIEW = "the view is made by the kernel's overlay"
_NO_FILTER = "libseccomp or the OCI seccomp profile is missing on this machine"


class ApptainerEnvironment(CarriesFiles):
    """Run a task in Apptainer or Singularity, as root or as an ordinary user, on machines without Docker.

    The container is a child of this process: when that ends, killed or not, the kernel ends all that is in it.
    Apptainer makes it; commands and transfers enter its namespaces from outside. Its files are the image, a SIF file
    mounted by squashfuse, under an overlay in memory (``storage_mb``, 2 GiB by default, beside ``memory_mb``).

    **Images** are SIF files: the one that ``docker_image`` names (``….sif``, absolute or beside the Dockerfile), one
    that Apptainer pulls (``oras://``, ``docker://``, ``library://``), or one built from the task's Dockerfile or
    ``docker_image`` by the store of the local sandbox. They are kept by content in ``image_cache_dir``, which machines
    may share; ``harbor-gym sif build`` fills it, for machines that can't build.

    **Who root is**: each sandbox has a user namespace of its own; root inside is whoever runs it, confined there, with
    neither the capabilities to mount nor to trace.

    **Limits**: ``memory_mb`` by watching: where the processes hold 95 % of it together (PSS), the branch that holds the
    greater part is killed, and counted. What allocates faster than a watcher looks (20 times a second) gets over it for
    a moment. ``cpus`` is not enforced, nor is the number of processes: a resource policy of Harbor's that asks for
    enforcement is refused.

    **Network**: ``no-network`` is loopback only. ``public`` is the machine's own network, its loopback included.
    Allowlists, and phases with other networks, are refused.

    Compose tasks, GPUs and host mounts of the user's own are refused. The environment belongs to the event loop that
    started it.
    """

    def __init__(
        self,
        *args: Any,
        image_cache_dir: Path | str | None = None,
        force_pull: bool = False,
        registry: str | None = None,
        no_mount: str | Sequence[str] = (),
        workdir: str | None = None,
        extra_args: Sequence[str] = (),
        setup_command: str | None = None,
        overlay: Literal["auto", "kernel", "fuse"] = "auto",
        build_dockerfile: bool = False,
        **kwargs: Any,
    ) -> None:
        """Prepare a sandbox; Harbor's own arguments go to Harbor's base class.

        Args:
            args: Harbor's.
            image_cache_dir: Folder of SIF files; None is ``sif`` in the cache directory.
            force_pull: Pull or build the SIF file anew.
            registry: ``oras://HOST/PATH`` to which ``harbor-gym sif build --push`` has pushed: looked at before
                building.
            no_mount: Further things of the machine that Apptainer is not to mount, by its own names.
            workdir: Working directory where the task names none, instead of the image's.
            extra_args: Further arguments of ``apptainer exec``.
            setup_command: Shell text that root runs at each start, before anything else comes into the sandbox.
            overlay: What makes the image writable: ``"kernel"``, ``"fuse"`` (fuse-overlayfs), or ``"auto"``: the first
                that is available.
            build_dockerfile: Build the task's Dockerfile, if it has one, even where it names a ``docker_image``.
            kwargs: Harbor's.

        Raises:
            UsageError: An option has no such value.
        """
        self._options = checked_options(
            image_cache_dir=image_cache_dir,
            force_pull=force_pull,
            registry=registry,
            no_mount=no_mount,
            workdir=workdir,
            extra_args=extra_args,
            setup_command=setup_command,
            overlay=overlay,
        )
        self._build_dockerfile = build_dockerfile
        self._container: Container | None = None
        self._image: SifImage | None = None
        self._watchdog: Watchdog | None = None
        self._ending: asyncio.Future[None] | None = None
        self._is_started = False
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "apptainer"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=False, disable_internet=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return what is enforced: memory, by watching."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Behaviours that don't hold."""
        lacking = {"system_calls_are_filtered": _NO_FILTER} if seccomp.missing_profile() else {}
        if self._options.overlay == "fuse":
            lacking["a_verifier_sees_the_image_and_what_counts"] = _NO_VIEW
        return lacking

    @property
    def image_substitutions(self) -> tuple[str, ...]:
        """Base images that were not available, and what stands in for each. Empty before :meth:`start`."""
        return self._image.substitutions if self._image is not None else ()

    @property
    def shares_setup(self) -> bool:
        """Whether a set-up command ran once for many sandboxes: it runs at each start."""
        return False

    @classmethod
    @override
    def preflight(cls) -> None:
        """Check that sandboxes can start on this machine.

        Raises:
            MissingDependencyError: A program or a right is missing; the message states how to get it.
        """
        require_all()

    @override
    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise TaskError(
                f"{self.environment_dir / COMPOSE_FILE_NAME}: apptainer sandboxes run one container and no Compose: "
                "use --env docker for this task"
            )
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)
        foreign = [target for target in self._mount_targets() if not target.startswith(_HARBOR_LOGS)]
        if foreign:
            raise TaskError(
                f"apptainer sandboxes mount nothing of the host (asked for: {', '.join(foreign)}): use --env docker"
            )

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Get the image, building or pulling it if the folder has none, and start the container.

        Raises:
            MissingDependencyError: A program is missing.
            SandboxStartError: The image is not available, Apptainer refuses, or the task's set-up fails.
        """
        if self._is_started:
            raise SandboxStartError("this apptainer sandbox was started before: make a new environment instead")
        self._is_started = True
        programs = await asyncio.to_thread(require_all)
        reaper.reap_in_background(in_docker=False)
        try:
            stored = await provide_sif(
                self._source(force_build=force_build),
                self._options.image_cache_dir,
                build_timeout_sec=self.task_env_config.build_timeout_sec,
                force=force_build or self._options.force_pull,
                registry_path=self._options.registry,
            )
            self._image = stored.image
            self._container = Container()
            await self._container.start(self._image, programs, self._container_options())
            self._watch_memory()
            await self._set_up()
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    def _source(self, *, force_build: bool) -> SifSource:
        named = self.task_env_config.docker_image
        is_prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build or self._build_dockerfile
        )
        return SifSource(self.environment_dir, named if is_prebuilt else None)

    def _container_options(self) -> ContainerOptions:
        assert self._image is not None
        shared = self._mount_targets(writable_only=True)
        return ContainerOptions(
            storage_bytes=self._storage_mb << 20,
            has_network=self.network_policy.network_mode == NetworkMode.PUBLIC,
            directories={
                "/tmp": 0o1777,
                **dict.fromkeys((self._default_workdir, self._image.workdir)),
                **dict.fromkeys(shared, 0o777),
            },
            no_mount=self._options.no_mount,
            extra_args=self._options.extra_args,
            overlay=self._options.overlay,
        )

    def _watch_memory(self) -> None:
        container = self._running()
        if self._effective_memory_mb:
            self._watchdog = Watchdog(lambda: container.first_process, self._effective_memory_mb << 20)
            self._watchdog.start()

    async def _set_up(self) -> None:
        """Run the set-up command, then bring in ``environment/files`` and run the ``setup.sh`` among them."""
        if is_of_verifier(self.session_id):
            return
        timeout_sec = self.task_env_config.build_timeout_sec
        if (command := self._options.setup_command) is not None:
            await self._run_set_up(command, timeout_sec)
        files = self.environment_dir / _FILES
        if self._takes_files and files.is_dir():
            await self.upload_dir(files, self._default_workdir)
            if (files / _SET_UP).is_file():
                await self._run_set_up(f"bash ./{_SET_UP}", timeout_sec)

    @property
    def _takes_files(self) -> bool:
        """Whether the image is not made by the task's Dockerfile, which copies what it needs itself."""
        return self._source(force_build=False).docker_image is not None

    async def _run_set_up(self, command: str, timeout_sec: float) -> None:
        async with setting_up(timeout_sec):
            done = await self.exec(command, user="root")
            require_success(done.return_code, f"{done.stdout or ''}{done.stderr or ''}")

    @override
    async def stop(self, delete: bool) -> None:
        """End the sandbox with everything in it. Idempotent, and safe in any state.

        ``delete`` changes nothing: a sandbox leaves nothing that could be kept; its SIF file stays.

        Raises:
            SandboxTimeoutError: It did not end in time.
        """
        container, self._container = self._container, None
        if container is not None:
            self._ending = asyncio.ensure_future(_end(container, self._watchdog))
        elif self._ending is None or self._ending.done():
            return
        # Neither a cancellation nor a second call returns before the sandbox is gone.
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
        return code is 128 + the signal; 126 where there is no such user or directory.

        Args:
            command: Shell text, of any length.
            cwd: Working directory; None is the task's ``workdir``, else the option's, else the image's.
            env: Variables on top of the image's, the task's and the trial's.
            timeout_sec: After so many seconds the command's process group is killed.
            user: Name or uid, with ``:group`` if need be, of the sandbox's own accounts; None is the default user.

        Raises:
            SandboxLostError: The sandbox is not running.
            ApptainerExecTimeoutError: The time was up.
        """
        emit = self._output_callback()
        finished = await run_command(
            self._running(),
            self._spec(command, cwd=cwd, env=env, user=user),
            timeout_sec=timeout_sec,
            on_chunk=None if emit is None else text_chunks(emit),
        )
        return ExecResult(
            stdout=finished.stdout.text(), stderr=finished.stderr.text(), return_code=finished.return_code
        )

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the sandbox.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        return self._running().enter_argv(self._spec(command, cwd=None, env=None, user=user))

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Do one of the works by which an episode cleans up, by no program of the sandbox's.

        Returns:
            What it returned, and ``oom_kills``: processes that were killed for their memory so far; None where the
            task has no limit.

        Raises:
            SandboxError: It failed.
            SandboxLostError: The sandbox is not running.
            SandboxTimeoutError: The time was up.
        """
        answer = await self._running().clean_up(work, arguments, timeout_sec=timeout_sec)
        return {**answer, "oom_kills": self.memory_kills}

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a pristine view: a fresh overlay on the image.

        In it are /tests, /tmp and /logs/verifier as the image has them, and of the sandbox's own files these paths and
        Harbor's other log directories, each as it is. setuid programs give nothing there.

        Args:
            verify_paths: Absolute paths of directories or regular files.

        Raises:
            SandboxError: The kernel refuses, or its overlay is not what the sandbox stands on.
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
        """Return the paths that differ from the image, some thousand at most.

        Raises:
            SandboxError: They can't be listed.
            SandboxLostError: The sandbox is not running.
        """
        return [PurePosixPath(path) for path in await self._running().written_paths()]

    @property
    def memory_kills(self) -> int | None:
        """Processes that were killed for their memory so far; None where the task has no limit."""
        return None if self._watchdog is None else self._watchdog.killed_processes

    async def is_up(self) -> bool:
        """Return whether the container's first process is there, whatever runs in it."""
        return self._container is not None and self._container.is_running

    def _running(self) -> Container:
        if self._container is None:
            raise SandboxLostError(f"the apptainer sandbox of {self.environment_name} is not running")
        return self._container

    @property
    def _default_workdir(self) -> str:
        assert self._image is not None
        return self.task_env_config.workdir or self._options.workdir or self._image.workdir

    def _spec(
        self, command: str, *, cwd: str | None, env: dict[str, str] | None, user: str | int | None
    ) -> CommandSpec:
        if self._image is None:
            raise SandboxLostError(f"the apptainer sandbox of {self.environment_name} is not running")
        resolved = self._resolve_user(user)
        return CommandSpec(
            command=command,
            user=self._image.user if resolved is None else str(resolved),
            cwd=cwd or self._default_workdir,
            env={"PATH": _DEFAULT_PATH, **self._image.env, **(self._merge_env(env) or {})},
            argv=(),
            joins_outputs=False,
            data_limit_bytes=None,
            user_processes=None,
        )

    @override
    def _way(self) -> Way:
        return self._running().carry


async def _end(container: Container, watchdog: Watchdog | None) -> None:
    try:
        if watchdog is not None:
            await watchdog.stop()
    finally:
        await container.stop()


def _is_of_verifier(target: str) -> bool:
    return PurePosixPath(target).is_relative_to(f"{_HARBOR_LOGS}verifier")
