"""A Harbor environment on Apptainer: without a daemon, without root, for any image, without leftovers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, override

from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode

from harbor_gym._runtime.harbor_versions import check_options, declares_options, resource_capabilities
from harbor_gym._runtime.processes import allow_open_files
from harbor_gym.sandboxes.apptainer.commands import open_command, run_command
from harbor_gym.sandboxes.apptainer.container import Container, ContainerOptions, id_count
from harbor_gym.sandboxes.apptainer.options import checked_options
from harbor_gym.sandboxes.apptainer.programs import find_programs, require_all
from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.apptainer.sif.store import SifSource, provide_sif
from harbor_gym.sandboxes.apptainer.watchdog import Watchdog
from harbor_gym.sandboxes.declared import require_workdir
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.namespaced import NamespacedEnvironment
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import Chunk
from harbor_gym.sandboxes.setup_command import is_of_verifier, require_success, setting_up
from harbor_gym.sandboxes.supervisor import seccomp
from harbor_gym.sandboxes.supervisor.program.messages import OPEN_FILES_OF_CALLER, CommandSpec
from harbor_gym.sandboxes.supervisor.running import Finished

_FILES, _SET_UP = "files", "setup.sh"
_NO_VIEW = "the view is made by the kernel's overlay"
_NOT_WATCHED = "memory_mb is watched here by process, and socket buffers are no process's"
_NO_FILTER = "libseccomp or the OCI seccomp profile is missing on this machine"


@declares_options
class ApptainerEnvironment(NamespacedEnvironment[Container]):
    """Run a task in Apptainer or Singularity, as root or as an ordinary user, on machines without Docker.

    The container is a child of this process: when that ends, killed or not, the kernel ends all its processes.
    Apptainer makes it; commands and transfers enter its namespaces from outside. Its files are the image, a SIF file
    mounted by squashfuse, under an overlay in memory (``storage_mb``, 2 GiB by default, beside ``memory_mb``).

    **Images** are SIF files: the one that ``docker_image`` names (``….sif``, absolute or beside the Dockerfile), one
    that Apptainer pulls (``oras://``, ``docker://``, ``library://``), or one built from the task's Dockerfile or
    ``docker_image`` by the store of the local sandbox. They are kept by content in ``image_cache_dir``, which machines
    may share; ``harbor-gym sif build`` fills it, for machines that can't build.

    **Root**: each sandbox has a user namespace of its own; root inside is the user that started it, confined there,
    without the capabilities to mount and to trace.

    **Limits**: ``memory_mb`` by watching: if the processes together use 95 % of it (PSS), the branch with the greater
    part is killed, and counted. A process that allocates faster than the watchdog looks (20 times a second) exceeds it
    for a moment. Unread data in sockets is not counted. A process may open 4096 files. ``cpus`` and the number of
    processes are not enforced: a resource policy of Harbor's that asks for enforcement is refused.

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
            registry: ``oras://HOST/PATH`` to which ``harbor-gym sif build --push`` has pushed; searched before
                building.
            no_mount: Further mounts of the machine that Apptainer must leave out, by Apptainer's names.
            workdir: Working directory if the task names none, instead of the image's.
            extra_args: Further arguments of ``apptainer exec``.
            setup_command: Shell text that root runs at each start, before files are copied into the sandbox.
            overlay: The overlay that makes the image writable: ``"kernel"``, ``"fuse"`` (fuse-overlayfs), or
                ``"auto"``, the first that is available.
            build_dockerfile: Build the task's Dockerfile, if it has one, even if the task names a ``docker_image``.
            kwargs: Harbor's.

        Raises:
            UsageError: An option has no such value.
        """
        self._options = checked_options(
            image_cache_dir=image_cache_dir,
            force_pull=force_pull,
            registry=registry,
            no_mount=no_mount,
            extra_args=extra_args,
            setup_command=setup_command,
            overlay=overlay,
        )
        self._build_dockerfile = build_dockerfile
        self._watchdog: Watchdog | None = None
        super().__init__(*args, workdir=workdir, **kwargs)

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
        """Return the enforced limits: memory, by watching."""
        return resource_capabilities(memory_limit=True)

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Behaviours of the conformance suite that don't hold → why."""
        lacking = {"socket_buffers_end_at_the_sandboxs_own_limit": _NOT_WATCHED}
        if seccomp.missing_profile():
            lacking["system_calls_are_filtered"] = _NO_FILTER
        if self._options.overlay == "fuse":
            lacking["a_verifier_sees_the_image_and_what_counts"] = _NO_VIEW
            lacking["a_set_up_runs_with_the_images_programs"] = _NO_VIEW
        return lacking

    @property
    def shares_setup(self) -> bool:
        """Whether a set-up command ran once for many sandboxes: it runs at each start."""
        return False

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Check that sandboxes can start on this machine.

        Raises:
            MissingDependencyError: A program or a right is missing; the message states how to get it.
        """
        check_options(cls, kwargs)
        require_all()

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def _bring_up(self, *, force_build: bool) -> None:
        allow_open_files(OPEN_FILES_OF_CALLER)
        stored = await provide_sif(
            self._source(force_build=force_build),
            self._options.image_cache_dir,
            build_timeout_sec=self.task_env_config.build_timeout_sec,
            force=force_build or self._options.force_pull,
            registry_path=self._options.registry,
        )
        image = self._image = stored.image
        programs = await asyncio.to_thread(find_programs)
        self._sandbox = Container()
        await self._sandbox.start(image, programs, self._container_options(image))
        self._watch_memory()
        await self._set_up(self._default_workdir(image))
        await self._upload_environment_dir_after_start()
        await self._start_services(image)

    def _source(self, *, force_build: bool) -> SifSource:
        named = self.task_env_config.docker_image
        is_prebuilt = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build or self._build_dockerfile
        )
        return SifSource(self.environment_dir, named if is_prebuilt else None)

    def _container_options(self, image: SifImage) -> ContainerOptions:
        return ContainerOptions(
            storage_bytes=self._storage_mb << 20,
            has_network=self.network_policy.network_mode == NetworkMode.PUBLIC,
            directories=self._directories(image),
            no_mount=self._options.no_mount,
            extra_args=self._options.extra_args,
            overlay=self._options.overlay,
        )

    def _watch_memory(self) -> None:
        container = self._running()
        if self._effective_memory_mb:
            self._watchdog = Watchdog(lambda: container.first_process, self._effective_memory_mb << 20)
            self._watchdog.start()

    async def _set_up(self, workdir: str) -> None:
        """Run the set-up command, then copy ``environment/files`` in and run the ``setup.sh`` among them."""
        if is_of_verifier(self.session_id):
            return
        timeout_sec = self.task_env_config.build_timeout_sec
        if (command := self._options.setup_command) is not None:
            await require_workdir(self)
            await self._run_set_up(command, timeout_sec)
        files = self.environment_dir / _FILES
        if self._takes_files and files.is_dir():
            await self.upload_dir(files, workdir)
            if (files / _SET_UP).is_file():
                await self._run_set_up(f"bash ./{_SET_UP}", timeout_sec)

    @property
    def _takes_files(self) -> bool:
        """Whether the image is not built by the task's Dockerfile, which copies its files itself."""
        return self._source(force_build=False).docker_image is not None

    async def _run_set_up(self, command: str, timeout_sec: float) -> None:
        async with setting_up(timeout_sec):
            done = await self.exec(command, user="root")
            printed = f"{done.stdout or ''}{done.stderr or ''}"
            require_ids(printed if done.return_code else "", "setup_command", text=command, count=id_count())
            require_success(done.return_code, printed)

    @override
    def _let_go(self) -> Coroutine[Any, Any, None] | None:
        container, self._sandbox = self._sandbox, None
        return None if container is None else _end(container, self._watchdog)

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    async def _run(self, request: CommandSpec, timeout_sec: float | None, on_chunk: Chunk | None) -> Finished:
        return await run_command(self._running(), request, timeout_sec=timeout_sec, on_chunk=on_chunk)

    @override
    async def _open(self, request: CommandSpec) -> PipedCommand:
        return await open_command(self._running(), request)

    @property
    @override
    def memory_kills(self) -> int | None:
        return None if self._watchdog is None else self._watchdog.killed_processes


async def _end(container: Container, watchdog: Watchdog | None) -> None:
    try:
        if watchdog is not None:
            await watchdog.stop()
    finally:
        await container.stop()
