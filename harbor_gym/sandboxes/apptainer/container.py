"""One container: started as a child of this process, entered from outside, ended with everything in it.

Apptainer only starts the container: commands and transfers enter its namespaces by the program that enters local
sandboxes (``supervisor/program``), which takes 20 ms where ``apptainer exec`` takes 90.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.procfs import PROC, descendants, read_stat
from harbor_gym._runtime.rootless import USER_NAMESPACE, is_rootless, shared_ids
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import SandboxError, SandboxLostError, SandboxStartError, SandboxTimeoutError
from harbor_gym.sandboxes.apptainer.programs import Programs
from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.archive.transfers import Work
from harbor_gym.sandboxes.archive.trees.records import StreamEndedError
from harbor_gym.sandboxes.declared import require_room
from harbor_gym.sandboxes.supervisor import seccomp
from harbor_gym.sandboxes.supervisor.forkserver_client import supervisor_argv, supervisor_environment
from harbor_gym.sandboxes.supervisor.program.messages import (
    FIRST,
    FIRST_OWN_ID,
    NAMESPACES,
    CommandSpec,
    ContainerConfig,
    ContainerSite,
    Target,
    as_object,
    to_json,
)
from harbor_gym.sandboxes.supervisor.running import RunningSandbox

_READY_TIMEOUT_SEC = 120.0
"""Long enough for one of 64 concurrent starts on two cores."""
_STOP_TIMEOUT_SEC = 10.0
_UP = b"up"
_OUTPUT_TAIL_BYTES = 4000
_VIEW_BYTES = 16
_HOSTS = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_NO_RESOLVER = "# This sandbox has no network.\n"

_RUNTIME_CONFIG = """\
allow setuid = no
allow pid ns = yes
config passwd = no
config group = no
config resolv_conf = no
mount proc = yes
mount sys = no
mount dev = minimal
mount devpts = yes
mount home = no
mount tmp = no
mount hostfs = no
mount slave = no
user bind control = yes
enable overlay = try
enable underlay = no
sessiondir max size = 64
memory fs type = tmpfs
"""
"""Nothing of the machine is mounted, and no account file of the image is covered: useradd works."""


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The settings of one container."""

    storage_bytes: int
    has_network: bool
    directories: Mapping[str, int | None]
    """Directory → mode, made for root if missing; None keeps the mode of an existing one."""

    no_mount: Sequence[str]
    extra_args: Sequence[str]
    overlay: str


class Container(RunningSandbox):
    """One running container. Made by :meth:`start`, ended by :meth:`stop`, bound to the loop that started it."""

    def __init__(self) -> None:
        super().__init__()
        self._process: asyncio.subprocess.Process | None = None
        self._target: Target | None = None
        self._site: ContainerSite | None = None
        self._view: int | None = None
        self._bound: list[str] = []
        self._views = 0
        self._apart: list[str] = []

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self, image: SifImage, programs: Programs, options: ContainerOptions) -> None:
        """Mount the image, have Apptainer make the container, and remove the rights that it leaves.

        After any failure, call :meth:`stop`.

        Raises:
            SandboxStartError: The image is for another machine, Apptainer or the kernel refused, or there was no
                answer in time.
            TaskError: The image's files, USER or root have ids that Apptainer sandboxes on this machine lack.
        """
        if image.machine != platform.machine():
            raise SandboxStartError(f"{image.path} is for {image.machine or 'another machine'}, not for this one")
        _require_ids(image.high_ids)
        config = _config(image, programs, options)
        with tempfile.TemporaryFile() as log:
            await shielded(self._start_launcher(to_json(config), log.fileno()))
            try:
                async with asyncio.timeout(_READY_TIMEOUT_SEC):
                    is_up = await self._report()
            except TimeoutError:
                raise SandboxStartError(
                    f"the apptainer sandbox did not come up within {_READY_TIMEOUT_SEC:g} s"
                ) from None
            if not is_up:
                raise SandboxStartError(f"the apptainer sandbox could not be made: {_tail(log.fileno())}")
        await self._adopt(image, options)

    async def _start_launcher(self, config: str, log: int) -> None:
        namespace = ("unshare", *USER_NAMESPACE) if is_rootless() else ()
        self._process = await start_process(
            *namespace,
            *supervisor_argv("launch", config),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=supervisor_environment(),
            start_new_session=True,
        )

    async def _report(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            return await self._process.stdout.readexactly(len(_UP)) == _UP
        return False

    async def _adopt(self, image: SifImage, options: ContainerOptions) -> None:
        assert self._process is not None
        outer, init = await asyncio.to_thread(_first_processes, self._process.pid)
        stat = None if init is None else read_stat(init)
        if outer is None or init is None or stat is None:
            raise SandboxStartError("the apptainer sandbox ended at once")
        filters = () if seccomp.missing_profile() else seccomp.filters(platform.machine())
        own = NAMESPACES & ~(os.CLONE_NEWNET if options.has_network else 0)
        # No process outside of its user namespace may see a FUSE file system, not even root's (fuse(4), allow_other).
        rootless = is_rootless() or await asyncio.to_thread(_has_fuse_root, init)
        target = Target(init, str(stat.start_time), (), {}, rootless, filters, own)
        directories = dict(options.directories)
        answer = await _run_program("prepare", target, {"directories": directories, "users": ["0", image.user]})
        if "error" in answer:
            raise SandboxStartError(f"the apptainer sandbox could not be set up: {answer['error']}")
        _require_ids(answer["ids"])
        self._site = ContainerSite(outer, str(_place()), options.storage_bytes, directories, _etc(options))
        self._target = target

    async def stop(self) -> None:
        """Kill everything inside and wait until it is gone. Idempotent.

        Raises:
            SandboxTimeoutError: It did not end in time; the kernel still takes it down.
        """
        self._target = None
        self._forget_view()
        await self._carriers.end()
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # its children end with it, and the container with these
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SEC):
                await process.communicate()
        except TimeoutError:
            raise SandboxTimeoutError(f"the apptainer sandbox did not end within {_STOP_TIMEOUT_SEC:g} s") from None

    @property
    def first_process(self) -> int:
        """The id of the container's first process on this machine.

        Raises:
            SandboxLostError: It is gone.
        """
        return self.target.init

    @property
    @override
    def is_running(self) -> bool:
        """Whether the container's first process runs."""
        if self._target is None or self._process is None or self._process.returncode is not None:
            return False
        stat = read_stat(self._target.init)
        return stat is not None and not stat.has_exited and str(stat.start_time) == self._target.start_time

    @property
    def target(self) -> Target:
        """The container, for processes that enter it.

        Raises:
            SandboxLostError: It is gone.
        """
        if self._target is None or not self.is_running:
            raise SandboxLostError("the apptainer sandbox is not running")
        return self._target

    # --- entering it ----------------------------------------------------------------------------------------------

    @override
    def enter_argv(self, request: CommandSpec) -> list[str]:
        return supervisor_argv("enter", to_json(self._entering(request, self._ranks.outside_of_view)))

    def enter_request(self, request: CommandSpec) -> bytes:
        """Return the request of ``enter-by`` for a command, which may have any length."""
        return to_json(self._entering(request, self._ranks.now)).encode()

    def _entering(self, request: CommandSpec, rank: str) -> dict[str, Any]:
        return {"target": self.target, "spec": self._filled_in(request, rank)}

    @override
    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        try:
            await self._carriers.carry(self.target, spec, work, *self.view_handles)
        except StreamEndedError as exc:
            if self.is_running:
                raise
            raise SandboxLostError(f"the apptainer sandbox's transfer was cut off ({exc})") from exc

    @override
    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        self._ranks.note_work(work)
        if work in ("open_grading", "close_grading"):
            room = await self._at_the_files("resize", {"is_grading": work == "open_grading"})
            if work == "close_grading":
                return room
            arguments = {**arguments, **room}
        target = self.target
        handles = self.view_handles
        own = self._before_policy.arguments(work, arguments)
        request = {"work": work, "arguments": own, "view_namespace": handles[0] if handles else -1}
        try:
            async with asyncio.timeout(timeout_sec):
                answer = await _run_program("clean_up", target, request, *handles)
        except TimeoutError:
            raise SandboxTimeoutError(
                f"the apptainer sandbox was not cleaned up ({work}) in {timeout_sec:g} s"
            ) from None
        if "error" in answer:
            if not self.is_running:
                raise SandboxLostError(f"the apptainer sandbox went away while it was cleaned up ({work})")
            raise SandboxError(f"the apptainer sandbox can't be cleaned up ({work}): {answer['error']}")
        self._before_policy.note(answer)
        return answer

    # --- the verifier's view --------------------------------------------------------------------------------------

    @property
    def view_handles(self) -> tuple[int, ...]:
        """A descriptor of the verifier's view, if there is one, for each process that enters."""
        return () if self._view is None else (self._view,)

    @override
    async def enter_view(
        self, paths: Sequence[str], *, rank: str, also: Sequence[str] = (), apart: Sequence[str] = ()
    ) -> None:
        await self.leave_view()
        self._views += 1
        self._apart = list(apart)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with near, far:
            carried = {"paths": list(paths), "also": list(also), "apart": self._apart}
            request = {"number": self._views, **carried, "control": far.fileno()}
            self._bound = (await self._at_the_files("view", request, far.fileno()))["bound"]
            self._asked = [*paths, *also]
            near.setblocking(False)
            _, handles, *_ = socket.recv_fds(near, _VIEW_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        (self._view,) = handles
        self._ranks.in_view = rank

    @override
    async def leave_view(self) -> None:
        if self._view is not None:
            await self._leave_view(keeps=False)

    async def _leave_view(self, *, keeps: bool) -> None:
        self._forget_view()
        await self._at_the_files("drop_view", {"number": self._views, "keeps": keeps, "apart": self._apart})

    @override
    async def merge_view(self, *, timeout_sec: float) -> str:
        if self._view is None:
            raise SandboxError("the apptainer sandbox has no view to be merged")
        request = {"number": self._views, "bound": self._bound, "asked": self._asked, "view_namespace": self._view}
        try:
            async with asyncio.timeout(timeout_sec):
                answer = await self._at_the_files("merge", request, self._view)
        except TimeoutError:
            raise SandboxTimeoutError(f"the apptainer sandbox's view was not merged in {timeout_sec:g} s") from None
        await self._leave_view(keeps=answer["is_used"])
        return answer["problem"]

    @override
    async def written_paths(self) -> list[str]:
        return (await self._at_the_files("written", {}))["paths"]

    async def _at_the_files(self, work: str, request: Mapping[str, Any], *handles: int) -> dict[str, Any]:
        target = self.target
        answer = await _run_program(work, target, {"site": as_object(self._site), **request}, *handles)
        if "error" in answer:
            if not self.is_running:
                raise SandboxLostError(f"the apptainer sandbox went away ({work})")
            raise SandboxError(f"the apptainer sandbox's files can't be reached ({work}): {answer['error']}")
        return answer

    def _forget_view(self) -> None:
        self._ranks.in_view = None
        if self._view is not None:
            os.close(self._view)
            self._view = None


def id_count() -> int:
    """Return how many user and group ids, from 0 on, an Apptainer sandbox on this machine has."""
    return min(shared_ids(), FIRST_OWN_ID - 1)


def _require_ids(ids: Iterable[int]) -> None:
    count = id_count()
    require_room({number for number in ids if number >= count}, count, 0, "an apptainer sandbox")


def _place() -> Path:
    """Return the mount point of every container's files, each in a mount namespace of its own."""
    return cache_dir() / "mountpoint"


def _etc(options: ContainerOptions) -> dict[str, str]:
    resolver = Path("/etc/resolv.conf").read_text(encoding="utf-8") if options.has_network else _NO_RESOLVER
    return {"resolv.conf": resolver, "hosts": _HOSTS}


def _config(image: SifImage, programs: Programs, options: ContainerOptions) -> ContainerConfig:
    place = _place()
    place.mkdir(exist_ok=True)
    mount = f"ro,allow_other,offset={image.offset}"
    overlay = "allow_other,lowerdir=0,upperdir=upper,workdir=work"
    left_out = [word for name in options.no_mount for word in ("--no-mount", name)]
    return ContainerConfig(
        parent=os.getpid(),
        is_rootless=is_rootless(),
        has_network=options.has_network,
        place=str(place),
        storage_bytes=options.storage_bytes,
        mount_image=(programs.squashfuse, "-o", mount, str(image.path.resolve()), "0"),
        overlay=options.overlay,
        mount_overlay=(programs.fuse_overlayfs, "-o", overlay, "root") if programs.fuse_overlayfs else (),
        etc=_etc(options),
        runtime=(
            programs.runtime, "--silent", "--config", f"{place}/runtime.conf", "exec", "--containall", "--no-init",
            "--writable", *left_out, *options.extra_args, f"{place}/root", FIRST,
        ),
        runtime_config=_RUNTIME_CONFIG,
        runtime_environment=_runtime_environment(place),
    )  # fmt: skip


def _runtime_environment(place: Path) -> dict[str, str]:
    """Return variables that make Apptainer write only to the container's own memory."""
    folders = {"CONFIGDIR": place / "home", "CACHEDIR": place / "home", "TMPDIR": place / "tmp"}
    named = {f"{owner}_{name}": str(path) for name, path in folders.items() for owner in ("APPTAINER", "SINGULARITY")}
    return {**named, "HOME": str(place / "home")}


def _first_processes(launcher: int) -> tuple[int | None, int | None]:
    """Return the first processes of the two PID namespaces below the launcher; the second is the container's."""
    depth = len(_numbers(os.getpid()))
    first: dict[int, int] = {}
    for pid in sorted(descendants(launcher)):
        numbers = _numbers(pid)
        if numbers[-1:] == [1]:
            first.setdefault(len(numbers) - depth, pid)
    return first.get(1), first.get(2)


def _has_fuse_root(init: int) -> bool:
    """Return whether a process's root directory is a FUSE file system's."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(init) / "mountinfo").read_text(encoding="utf-8").splitlines():
            place, _, source = line.partition(" - ")
            if place.split()[4] == "/":
                return source.startswith("fuse")
    return False


def _numbers(pid: int) -> list[int]:
    """Return a process's ids, in this PID namespace first, in its own last."""
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("NSpid:"):
                return [int(number) for number in line.split()[1:]]
    return []


async def _run_program(work: str, target: Target, request: Mapping[str, Any], *handles: int) -> dict[str, Any]:
    """Run the supervisor's program ``work`` on a container; return its answer, or why there is none as ``error``."""
    process = await start_process(
        *supervisor_argv(work, json.dumps({"target": as_object(target), **request})),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=handles,
        env=supervisor_environment(),
        start_new_session=True,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await shielded(process.communicate())
    with contextlib.suppress(ValueError):
        return json.loads(output)
    return {"error": errors.decode("utf-8", "replace").strip()[-_OUTPUT_TAIL_BYTES:] or "its process was killed"}


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    text = os.pread(log, _OUTPUT_TAIL_BYTES, max(0, size - _OUTPUT_TAIL_BYTES)).decode("utf-8", "replace").strip()
    return text or "its launcher ended without a reason"
