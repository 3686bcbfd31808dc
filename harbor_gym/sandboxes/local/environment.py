"""A Harbor environment without a daemon: one private file system and one set of namespaces per sandbox."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, override

from pydantic import TypeAdapter, ValidationError

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import Hold
from harbor_gym._runtime.errors import MissingDependencyError, UsageError
from harbor_gym._runtime.harbor_versions import check_options, declares_options
from harbor_gym.sandboxes.compose.environment import ComposedEnvironment
from harbor_gym.sandboxes.compose.member import Member, no_services
from harbor_gym.sandboxes.compose.service import ServiceSandbox
from harbor_gym.sandboxes.declared import require_room
from harbor_gym.sandboxes.errors import SandboxError, SandboxStartError
from harbor_gym.sandboxes.images.build import Image, ImageSource, hold_image, hold_known
from harbor_gym.sandboxes.local import criu
from harbor_gym.sandboxes.local.options import LocalOptions
from harbor_gym.sandboxes.local.snapshots import hold_set_up
from harbor_gym.sandboxes.namespaced import default_env
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.setup_command import is_of_verifier
from harbor_gym.sandboxes.supervisor import cgroups, own_ids, seccomp
from harbor_gym.sandboxes.supervisor.client import COPY_TIMEOUT_SEC, Dump
from harbor_gym.sandboxes.supervisor.options import warn_once
from harbor_gym.sandboxes.supervisor.program import accounts
from harbor_gym.sandboxes.supervisor.program.messages import (
    HIGH_IDS,
    CommandSpec,
    SupervisorConfig,
)
from harbor_gym.sandboxes.tools import find_program

_LARGE_BYTES = 1 << 20
"""A smaller image of pages keeps its zeros: to find them takes a process."""
_PACK = ("--create", "--format=posix", "--sparse", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*",
         "--file=-")  # fmt: skip
_NO_GROUP = "no control group for memory can be made here: memory_mb bounds each process by itself"
TOOLS = {"buildah": "buildah", "unshare": "util-linux", "setpriv": "util-linux"}
"""Program → its Debian package."""


@dataclass(frozen=True, slots=True)
class SandboxDump:
    """A local sandbox at one moment, in memory or packed. The holder must close it."""

    image: Image
    memory: Dump
    machine: criu.Machine

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that it takes."""
        state = os.fstatvfs(self.memory.memory)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def pack(self, target: int) -> None:
        """Append what is in memory to a file, as an archive without its zeros. The record is not in it.

        Raises:
            SandboxError: It can't be written.
        """
        place = f"/proc/self/fd/{self.memory.memory}"
        images = (path for path in Path(f"{place}/images").iterdir() if path.name.startswith("pages-"))
        digs = [("fallocate", "--dig-holes", str(path)) for path in images if path.stat().st_size > _LARGE_BYTES]
        for argv in (*digs, ("tar", *_PACK, "--directory", place, ".")):
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.PIPE,
                pass_fds=[self.memory.memory],
                check=False,
            )
            if done.returncode:
                problem = done.stderr.decode("utf-8", "replace").strip()
                raise SandboxError(f"the dump can't be written: {problem}")

    def close(self) -> None:
        """Free the memory."""
        self.memory.close()


_STORED = TypeAdapter(SandboxDump)


@declares_options
class LocalEnvironment(ComposedEnvironment[LocalOptions]):
    """Run a task in namespaces of this machine: without a daemon, isolated from the host, without leftovers.

    The root file system is the task's image, read-only, under an overlay in memory (``storage_mb``, 2 GiB by default,
    beside ``memory_mb``; at most one file for each 8 KiB of it; an eighth more, 64 MiB at least, while it is graded).
    Processes, mounts, IPC, host name, network and cgroups are namespaces of their own. Root inside is root without the
    capabilities to mount, to make devices or to trace.

    **Limits** apply to all processes of a sandbox together, by control groups of either version: ``memory_mb`` (files
    not counted; a tolerance of 64 MiB or an eighth), ``cpus``, and the option ``max_processes`` (1024). If memory runs
    out, the kernel kills the largest process and counts it in the sandbox's /sys/fs/cgroup, as in a container.
    Socket buffers count as memory; with control groups of version 1 they have a quarter of ``memory_mb`` beside it.
    If no control groups can be made, ``memory_mb`` limits each process by itself, the log reports it once, and a
    resource policy of Harbor's that asks for enforcement is refused. A process may open 1024 files, or up to 4096 if it
    raises its limit (``ulimit -n``).

    **Images** come from the task's Dockerfile or ``docker_image``, which may be ``oci-archive:PATH`` or
    ``docker-archive:PATH`` too, or from the options ``image`` (the same names) or ``rootfs`` (a directory, or a tar).
    They are cached layer by layer, and share common layers. A ``setup_command`` runs once, in a sandbox of its own with
    the image's environment; every sandbox then starts from the resulting files.

    **Network**: ``no-network`` is loopback only. ``public`` goes through slirp4netns, a network stack without rights on
    the machine, which allows outgoing connections and no incoming ones. A packet filter outside the sandbox's reach
    refuses IPv6, the addresses of cloud metadata, the machine's loopback and, unless the option ``private_network`` is
    true, private networks and the machine's own addresses. Without slirp4netns such a task is refused,
    unless the option ``network`` is ``"none"``, which runs every task without a network. Phases may differ. An
    allowlist needs no program: a proxy and a resolver outside the sandbox's reach are its only ways out, for TCP to
    listed addresses, and for TLS and HTTP/1 to listed names. Images are built with the machine's network.

    **System calls** that ordinary programs do not need are refused: tracing (no gdb or strace), mounts, namespaces,
    BPF, io_uring, libaio, kernel keys, and all system calls of 32-bit programs. setuid programs of the image work, and
    give the rights of the sandbox's root.

    **Root**: each sandbox has a user namespace of its own with 589,824 ids that no other sandbox has, and up to 128
    higher ones that its image uses, so root inside has no rights on the machine. If the kernel or the cache's file
    system can't show an image's files with other owners (``harbor-gym doctor`` reports it), and for an ordinary user,
    root inside has the caller's user id, confined in namespaces.

    Needs Linux with buildah, libseccomp and the OCI seccomp profile of buildah's package, and root or an ordinary user
    with subordinate ids (subuid(5)). GPUs and host mounts of the user's own are refused.

    **Services** of a task's ``docker-compose.yaml`` are further sandboxes of the episode, each with its own ids, limits
    and files, in networks that lead nowhere else; Compose reads the file. What of Compose is not supported is refused
    by name.

    The environment belongs to the event loop that started it. Its sandboxes end with the process in any case.
    """

    own_options = LocalOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Prepare a sandbox by Harbor's arguments and the options of :class:`LocalOptions`.

        Raises:
            UsageError: An option has no such value.
        """
        self._copied: SandboxDump | None = None
        self._built: Image | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "local"

    @override
    def _validate_definition(self) -> None:
        super()._validate_definition()
        if self._uses_compose and self._options.forkable:
            why = "the sandbox option forkable is refused, as services can't be copied exactly: leave it out"
            raise no_services(self.type(), why)

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Behaviours of the conformance suite that don't hold on this machine → why."""
        return {} if "memory" in cgroups.places() else {"socket_buffers_end_at_the_sandboxs_own_limit": _NO_GROUP}

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Check that sandboxes can start on this machine.

        Raises:
            MissingDependencyError: Not Linux, no namespaces, or a program is missing; the message states how to get it.
        """
        check_options(cls, kwargs)
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

    @property
    @override
    def _has_image_of_options(self) -> bool:
        return self._chosen_image.image is not None or self._chosen_image.rootfs is not None

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def _provide_own_image(self, *, force_build: bool) -> None:
        copied = self._copied
        if copied is not None and copied.memory.is_packed:
            copied.machine.require(await criu.machine())
        if copied is None or copied.memory.is_packed:
            self._built, self._hold = await self._hold_image(force_build=force_build)
            found = self._built.digest, self._built.layers
            if copied is not None and found != (copied.image.digest, copied.image.layers):
                raise UsageError("the dump is of another image than the one that the task has now")
        else:
            self._built, self._hold = copied.image, hold_known(copied.image)
            if self._hold is None:
                raise SandboxStartError("the local sandbox's copy does not come up: its image was removed meanwhile")

    @override
    def _service(self, member: Member) -> ServiceSandbox:
        return _LocalService(member, self)

    @override
    async def _bring_up_sandbox(self) -> Image:
        copied, self._copied = self._copied, None
        assert self._built is not None
        self._image = image = self._dressed(self._built)
        ids = image.layers, image.user, image.high_ids
        if (high_ids := _known_high_ids.get(ids)) is None:
            high_ids = await asyncio.to_thread(_high_ids, image)
            while len(_known_high_ids) >= _KEPT_IMAGES:
                del _known_high_ids[next(iter(_known_high_ids))]
            _known_high_ids[ids] = high_ids
        config = self._config(image, self._directories(image), high_ids)
        await self._start_sandbox(config, copied=None if copied is None else copied.memory)
        return image

    async def _hold_image(self, *, force_build: bool) -> tuple[Image, Hold]:
        chosen = self._chosen_image
        source = self._source(force_build=force_build)
        timeout_sec = self.task_env_config.build_timeout_sec
        image, held = await hold_image(source, build_timeout_sec=timeout_sec, force_build=force_build)
        if chosen.setup_command is None:
            return image, held
        try:
            command = CommandSpec(chosen.setup_command, "0", self._default_workdir(image), default_env(image))
            config = self._config(image, self._image_directories(image))
            return await hold_set_up(image, command, config, timeout_sec=timeout_sec)
        finally:
            held.release()

    @override
    def _source(self, *, force_build: bool) -> ImageSource:
        if not self._has_image_of_options:
            return super()._source(force_build=force_build)
        chosen = self._chosen_image
        return ImageSource(self.environment_dir, docker_image=chosen.image, rootfs=chosen.rootfs)

    @property
    @override
    def _builds_dockerfile(self) -> bool:
        return self._chosen_image.build_dockerfile

    @property
    def _chosen_image(self) -> LocalOptions:
        """The options of the image; a separate verifier's sandbox has an image of its own, which no option sets."""
        return LocalOptions() if is_of_verifier(self.session_id) else self._options

    def _config(
        self, image: Image, directories: dict[str, int | None], high_ids: Sequence[int] | None = None
    ) -> SupervisorConfig:
        """Return what a sandbox is to be.

        Args:
            image: Its image.
            directories: Made in it where they are missing, root's, and given their mode; None leaves theirs.
            high_ids: Those of its ids that are above the ones which each sandbox has. None: its files have the ids of
                this process's own user namespace, for ``copy_written``.
        """
        if missing := [name for name in cgroups.CONTROLLERS if name not in cgroups.places()]:
            warn_once(
                f"no control groups can be made here for {', '.join(missing)}: without them memory_mb bounds each "
                "process of a local sandbox and not their sum, max_processes at most each user's, and cpus nothing. "
                "They need root on a machine, or a container started with --privileged --cgroupns=host"
            )
        return self._supervisor_config(directories, filters=seccomp.filters(platform.machine()))._replace(
            layers=tuple(map(str, image.directories)),
            has_own_ids=high_ids is not None and not own_ids.refusal(),  # found when the image's ids were
            high_ids=tuple(high_ids or ()),
        )

    # --- copies --------------------------------------------------------------------------------------------------

    @property
    def is_forkable(self) -> bool:
        """Whether the processes of its terminal can be copied: the option ``forkable``."""
        return self._options.forkable

    async def exec_root(self, command: str, *, user: str | int | None = None) -> PipedCommand:
        """Start the process above all that :meth:`dump` copies; else as :meth:`exec_pipes`."""
        return await self._running().open(self._request(command, user=user)._replace(is_root=True))

    async def dump(self, root: int) -> SandboxDump:
        """Dump the terminal's first process, all below it and the sandbox's files; they go on undisturbed.

        Args:
            root: The process's id in the sandbox.

        Raises:
            SandboxError: They can't be copied; the text states why.
            SandboxLostError: The sandbox is not running.
        """
        if not self._options.forkable:
            raise SandboxError("the sandbox was started without the option forkable=True")
        image = self._started_image()
        assert isinstance(image, Image)
        if image.entrypoint or image.healthcheck:
            raise SandboxError("its image has services (ENTRYPOINT or HEALTHCHECK), which would run twice in a copy")
        machine = await criu.machine()
        memory = await self._running().dump(root, await criu.found(), timeout_sec=COPY_TIMEOUT_SEC)
        return SandboxDump(image, memory, machine)

    @staticmethod
    def stored_dump(record: Any, packed: int) -> SandboxDump:
        """Return a dump as its record in JSON values, and the file to which it was packed, have it.

        Raises:
            UsageError: It is no such record.
        """
        try:
            dump = _STORED.validate_python(record)
        except ValidationError as exc:
            raise UsageError(f"the dump's record can't be read: {exc.errors()[0]['msg']}") from exc
        return replace(dump, memory=replace(dump.memory, memory=packed, is_packed=True))

    def begin_as(self, dump: SandboxDump) -> None:
        """Let this sandbox, not started yet, begin with a dump's image and files; its start reads and runs nothing."""
        self._copied, self._is_copy = dump, True

    async def restore(self, dump: SandboxDump) -> None:
        """Bring back the processes of a dump, as which this sandbox began.

        Raises:
            SandboxError: They can't be restored; the text states why.
            SandboxLostError: The sandbox is not running.
        """
        await self._running().restore(dump.memory, await criu.found(), timeout_sec=COPY_TIMEOUT_SEC)


class _LocalService(ServiceSandbox, LocalEnvironment):
    """A local sandbox of a service beside ``main``."""


_known_high_ids: dict[tuple[tuple[str, ...], str, tuple[int, ...]], tuple[int, ...]] = {}
"""Layers, USER and ids of an image's files → result of :func:`_high_ids`, of the last :data:`_KEPT_IMAGES`."""
_KEPT_IMAGES = 256


def _high_ids(image: Image) -> tuple[int, ...]:
    """Return the ids of an image's files, USER and accounts above those that each sandbox of this machine has.

    Raises:
        TaskError: Its files, USER or root have more of them than a sandbox of this machine can have.
    """
    known = accounts.Accounts(_rows(image, "etc/passwd"), _rows(image, "etc/group"))
    count = own_ids.id_count()

    def high(numbers: Iterable[int]) -> set[int]:
        return {number for number in numbers if count <= number < rootless.ALL_IDS}

    needed = sorted(high((*image.high_ids, *accounts.ids_of("0", known), *accounts.ids_of(image.user, known))))
    room = 0 if own_ids.refusal() else HIGH_IDS
    require_room(needed, count, room, "a local sandbox")
    rows = (*(row[2:4] for row in known.users), *(row[2:3] for row in known.groups))
    listed = high(int(word) for row in rows for word in row if word.isdecimal())
    return (*needed, *sorted(listed.difference(needed)))[:room]


def _rows(image: Image, name: str) -> list[list[str]]:
    """Return the fields of a file of accounts in the image's own layers; none if they have no such file."""
    for layer in image.directories:
        path = layer / name
        if not path.is_symlink() and path.is_file():
            return accounts.fields_of(path.read_text(errors="replace", encoding="utf-8"))
    return []
