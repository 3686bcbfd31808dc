"""A Harbor environment on SIF files, Apptainer's images: without a daemon, without root, without leftovers."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentResourceCapabilities

from harbor_gym._runtime.cache import Hold
from harbor_gym._runtime.harbor_versions import check_options, declares_options, resource_capabilities
from harbor_gym._runtime.rootless import shared_ids
from harbor_gym.sandboxes.apptainer.options import ApptainerOptions, default_image_dir
from harbor_gym.sandboxes.apptainer.programs import find_programs, has_kernel_overlay, overlay_program, require_all
from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.apptainer.sif.store import Stored, own_file, provide_sif
from harbor_gym.sandboxes.apptainer.watchdog import Watchdog
from harbor_gym.sandboxes.compose.environment import ComposedEnvironment
from harbor_gym.sandboxes.compose.member import Member
from harbor_gym.sandboxes.compose.service import ServiceSandbox
from harbor_gym.sandboxes.declared import require_room, require_workdir
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.setup_command import is_of_verifier, require_success, setting_up
from harbor_gym.sandboxes.supervisor import cgroups, seccomp
from harbor_gym.sandboxes.supervisor.client import SupervisedSandbox
from harbor_gym.sandboxes.supervisor.program.messages import FIRST_OWN_ID, CgroupLimits, SupervisorConfig

_FILES, _SET_UP = "files", "setup.sh"
_NO_VIEW = "the view is made by the kernel's overlay"
_HOSTS = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_NO_RESOLVER = "# This sandbox has no network.\n"
_NOT_WATCHED = "memory_mb is watched here by process, and socket buffers are no process's"
_NO_FILTER = "libseccomp or the OCI seccomp profile is missing on this machine"


@declares_options
class ApptainerEnvironment(ComposedEnvironment[ApptainerOptions]):
    """Run a task on an image of Apptainer or Singularity, as root or as an ordinary user, on machines without Docker.

    The sandbox is a local one (:class:`harbor_gym.sandboxes.local.environment.LocalEnvironment`) whose files are the
    image, a SIF file served by squashfuse, under an overlay in memory (``storage_mb``, 2 GiB by default, beside
    ``memory_mb``). Apptainer itself only pulls images.

    **Images** are SIF files: the one that ``docker_image`` names (``….sif``, absolute or beside the Dockerfile), one
    that Apptainer pulls (``oras://``, ``docker://``, ``library://``), or one built from the task's Dockerfile or
    ``docker_image`` by the store of the local sandbox. They are kept by content in ``image_cache_dir``, which machines
    may share; ``harbor-gym sif build`` fills it, for machines that can't build.

    **Root**: each sandbox has a user namespace of its own; root inside is the user that started it, confined there,
    without the capabilities to mount and to trace.

    **Limits** are those of a local sandbox. Where no control group for memory can be made, ``memory_mb`` is watched: if
    the processes together use 95 % of it (PSS), the branch with the greater part is killed, and counted. A process that
    allocates faster than the watchdog looks (20 times a second) exceeds it for a moment. Unread data in sockets is not
    counted then.

    **Network**: ``no-network`` is loopback only. ``public`` is the machine's own network, its loopback included, unless
    the option ``network`` is ``"task"``: then it is as in a local sandbox, and phases may differ. An allowlist is as
    in a local sandbox in any case.

    **Services** of a task's ``docker-compose.yaml`` are further sandboxes of the episode, each on a SIF file, as those
    of a local one. The option ``network`` has to be ``"task"`` for them. A set-up is only ``main``'s.

    GPUs and host mounts of the user's own are refused. The environment belongs to the event loop that started it.
    """

    own_options = ApptainerOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a sandbox by Harbor's arguments and the options of :class:`ApptainerOptions`.

        Raises:
            UsageError: An option has no such value.
        """
        self._stored: Stored | None = None
        self._watchdog: Watchdog | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "apptainer"

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return the enforced limits: memory in any case, by watching if need be."""
        return resource_capabilities(cpu_limit="cpu" in cgroups.places(), memory_limit=True)

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Behaviours of the conformance suite that don't hold → why."""
        lacking = {} if _has_group() else {"socket_buffers_end_at_the_sandboxs_own_limit": _NOT_WATCHED}
        if seccomp.missing_profile():
            lacking["system_calls_are_filtered"] = _NO_FILTER
        if not has_kernel_overlay():
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
    async def _provide_own_image(self, *, force_build: bool) -> None:
        self._stored = await provide_sif(
            self._source(force_build=force_build),
            self._options.image_cache_dir or default_image_dir(),
            build_timeout_sec=self.task_env_config.build_timeout_sec,
            force=force_build or self._renews_images,
            registry_path=self._options.registry,
        )

    @property
    @override
    def _renews_images(self) -> bool:
        return self._options.force_pull

    @override
    def _service(self, member: Member) -> ServiceSandbox:
        return _ApptainerService(member, self)

    @override
    async def _bring_up_sandbox(self) -> SifImage:
        assert self._stored is not None
        image = self._image = self._dressed(self._stored.image)
        if image.machine != platform.machine():
            raise SandboxStartError(f"{image.path} is for {image.machine or 'another machine'}, not for this one")
        _require_ids(image.high_ids)
        programs = await asyncio.to_thread(find_programs)
        filters = () if seccomp.missing_profile() else seccomp.filters(platform.machine())
        config = self._supervisor_config(self._directories(image), filters=filters)
        await self._start_sandbox(
            config._replace(
                image=(programs.squashfuse, "-f", "-o", f"offset={image.offset}", str(image.path.resolve())),
                overlay=overlay_program(programs, self._options.overlay),
                etc={"hosts": _HOSTS, "resolv.conf": _resolver(config)},
                users=("0", image.user),
            )
        )
        _require_ids(self._running().user_ids)
        self._watch_memory()
        return image

    @override
    def _source(self, *, force_build: bool) -> ImageSource:
        source = super()._source(force_build=force_build)
        # The SIF file of a service is beside the Compose file.
        return source if own_file(source) is None else replace(source, environment_dir=self.environment_dir)

    @override
    def _limits(self) -> CgroupLimits:
        limits = super()._limits()
        return limits if _has_group() else limits._replace(memory_bytes=None)

    def _watch_memory(self) -> None:
        sandbox, limit = self._running(), super()._limits().memory_bytes
        if limit and not _has_group():
            self._watchdog = Watchdog(lambda: sandbox.first_process, limit)
            self._watchdog.start()

    @override
    async def _set_up(self) -> None:
        """Run the set-up command, then copy ``environment/files`` in and run the ``setup.sh`` among them."""
        if is_of_verifier(self.session_id):
            return
        timeout_sec = self.task_env_config.build_timeout_sec
        if (command := self._options.setup_command) is not None:
            await require_workdir(self)
            await self._run_set_up(command, timeout_sec)
        files = self.environment_dir / _FILES
        if self._takes_files and files.is_dir():
            await self.upload_dir(files, self._default_workdir(self._started_image()))
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
            require_ids(printed if done.return_code else "", "setup_command", text=command, count=_id_count())
            require_success(done.return_code, printed)

    @override
    async def _end(self, sandbox: SupervisedSandbox | None, hold: Hold | None) -> None:
        watchdog, self._watchdog = self._watchdog, None
        try:
            if watchdog is not None:
                await watchdog.stop()
        finally:
            await super()._end(sandbox, hold)

    @property
    @override
    def memory_kills(self) -> int | None:
        return super().memory_kills if self._watchdog is None else self._watchdog.killed_processes


class _ApptainerService(ServiceSandbox, ApptainerEnvironment):
    """A sandbox of Apptainer of a service beside ``main``."""


def _resolver(config: SupervisorConfig) -> str:
    return Path("/etc/resolv.conf").read_text(encoding="utf-8") if config.shares_network else _NO_RESOLVER


def _has_group() -> bool:
    """Return whether a control group limits the memory of a sandbox."""
    return "memory" in cgroups.places()


def _id_count() -> int:
    """Return how many user and group ids, from 0 on, an Apptainer sandbox on this machine has."""
    return min(shared_ids(), FIRST_OWN_ID)


def _require_ids(ids: Iterable[int]) -> None:
    count = _id_count()
    require_room({number for number in ids if number >= count}, count, 0, "an apptainer sandbox")
