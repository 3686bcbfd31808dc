"""The caller's side of one sandbox's supervisor: start it, run commands through it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.rootless import USER_NAMESPACE, is_rootless
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.errors import (
    SandboxError,
    SandboxLostError,
    SandboxMemoryError,
    SandboxStartError,
    SandboxTimeoutError,
)
from harbor_gym.sandboxes.archive.transfers import Work
from harbor_gym.sandboxes.archive.trees.records import StreamEndedError
from harbor_gym.sandboxes.local import cgroups, own_ids
from harbor_gym.sandboxes.local.network import NAME_SERVER, NETWORK_PROGRAM
from harbor_gym.sandboxes.local.options import Limits
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import Chunk, InputPipe, OutputPipe
from harbor_gym.sandboxes.supervisor import seccomp
from harbor_gym.sandboxes.supervisor.before_policy import BeforePolicy
from harbor_gym.sandboxes.supervisor.forkserver_client import (
    ForkedSupervisor,
    fork_supervisor,
    supervisor_argv,
    supervisor_environment,
)
from harbor_gym.sandboxes.supervisor.program.messages import (
    CommandSpec,
    Criu,
    SupervisorConfig,
    Target,
    as_object,
    to_json,
)
from harbor_gym.sandboxes.supervisor.running import Finished, RunningSandbox
from harbor_gym.sandboxes.tools import find_program, run_tool

_READY_TIMEOUT_SEC = 30.0
COPY_TIMEOUT_SEC = 120.0
"""For each part of a copy that depends on the size of what is copied."""

_STOP_TIMEOUT_SEC = 10.0
_REMOVE_PAUSE_SEC = 0.01
_MESSAGE_BYTES = 1 << 16
_CLEANUP_TRIES = 3
"""Attempts of a clean-up, whose process a process of the sandbox may kill."""
_DRAIN_SEC = 0.1
"""Seconds after a command's end in which processes that it left (``> >(tee log)``) may still write output."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The processes and the files of one sandbox at one moment, in memory. Whoever has it closes it."""

    memory: int
    """A descriptor of a directory without a name."""

    last: int
    """The last process id in it."""

    ids: tuple[tuple[int, int, int], ...]
    """The map of that sandbox's user namespace."""

    before_policy: BeforePolicy
    """What was known of the sandbox before its policy."""

    is_packed: bool = False
    """Whether the descriptor is, instead, of a file which from its offset on has the directory as an archive."""

    def close(self) -> None:
        """Free the memory."""
        os.close(self.memory)


class SupervisedSandbox(RunningSandbox):
    """One running sandbox. Made by :meth:`start`, ended by :meth:`stop`, bound to the loop that started it."""

    def __init__(self) -> None:
        super().__init__()
        self._control, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._process: ForkedSupervisor | asyncio.subprocess.Process | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests = 0
        self._is_lost = False
        self._loss: dict[str, Any] = {}
        self._group = cgroups.group_name()
        self._target: Target | None = None
        self._process_limits: tuple[int | None, int | None] = (None, None)
        self._view: int | None = None
        self._is_copy = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(
        self,
        layers: Sequence[Path],
        limits: Limits,
        directories: Mapping[str, int | None],
        *,
        high_ids: Sequence[int] = (),
        is_for_copying: bool = False,
        copied: Dump | None = None,
    ) -> None:
        """Start the sandbox on ``layers``, the topmost first, which are not changed; return when its PID 1 runs.

        After any failure, call :meth:`stop`.

        Args:
            layers: Directories of the host.
            limits: What bounds it.
            directories: Made in it where they are missing, root's, and given their mode; None leaves theirs.
            high_ids: Those of its ids that are above the ones which each sandbox has.
            copied: Begin with the files of another sandbox, as its policy left them; :meth:`restore` brings its
                processes. The image is the same.
            is_for_copying: Let its files have the ids of this process's own user namespace, for :meth:`copy_written`.

        Raises:
            SandboxStartError: The kernel refused, a directory can't be made, or there was no answer in
                time.
        """
        mountpoint = cache_dir() / "mountpoint"
        mountpoint.mkdir(exist_ok=True)
        cgroups.remove_abandoned_groups()
        has_own_ids = not is_for_copying and not own_ids.refusal()  # found when the image's ids were
        self._process_limits = cgroups.process_limits(limits.limits)
        config = SupervisorConfig(
            parent=os.getpid(),
            layers=tuple(map(str, layers)),
            mountpoint=str(mountpoint),
            storage_bytes=limits.storage_bytes,
            slirp4netns=find_program(NETWORK_PROGRAM),
            has_network=limits.has_network,
            may_have_network=limits.may_have_network,
            name_server=NAME_SERVER,
            directories=dict(directories),
            is_rootless=is_rootless(),
            has_own_ids=has_own_ids,
            high_ids=tuple(high_ids),
            filters=seccomp.filters(platform.machine()),
            closed_networks=limits.closed_networks,
            cgroups=cgroups.groups_for(self._group, limits.limits),
            limits=limits.limits,
            is_copy=copied is not None,
        )
        if copied is not None:
            self._is_copy = True
            self._send_spec({}, {"ids": copied.ids, "is_packed": copied.is_packed}, [copied.memory])
        await shielded(self._start_supervisor(to_json(config)))
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._receive)
        limit_sec = _READY_TIMEOUT_SEC if copied is None else COPY_TIMEOUT_SEC
        try:
            async with asyncio.timeout(limit_sec):
                answer = await self._ready
        except TimeoutError:
            raise SandboxStartError(f"the local sandbox did not come up within {limit_sec:g} s") from None
        if "error" in answer:
            raise SandboxStartError(f"the local sandbox could not be set up: {answer['error']}")
        ids = tuple(map(tuple, answer["ids"]))
        if copied is not None:
            self._before_policy = copied.before_policy.in_copy(copied.ids, ids)
            self._ranks.note_policy()
        whose = config.cgroups, config.is_rootless, config.filters
        self._target = Target(answer["init"], answer["start_time"], ids, *whose)

    async def _start_supervisor(self, config: str) -> None:
        try:
            if not is_rootless():
                self._process = await fork_supervisor(config, self._far_end)
                return
            far_end = self._far_end.fileno()
            self._process = await start_process(
                *("unshare", *USER_NAMESPACE, *supervisor_argv("serve", str(far_end), config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[far_end],
                env=supervisor_environment(),
                start_new_session=True,
            )
        finally:
            self._far_end.close()

    async def stop(self) -> None:
        """Kill everything inside and wait until it is gone. Idempotent.

        Raises:
            SandboxTimeoutError: The supervisor had to be killed; the kernel still takes the sandbox down with it.
        """
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._far_end.close()
        self._lose()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SEC):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            raise SandboxTimeoutError(f"the local sandbox did not end within {_STOP_TIMEOUT_SEC:g} s") from None
        finally:
            await self._carriers.end()
            await self._remove_groups()

    async def dump(self, root: int, criu: Criu, *, timeout_sec: float) -> Dump:
        """Dump a process and all below it to memory, with the sandbox's files. They go on undisturbed.

        Args:
            root: Its id in the sandbox; beside it only the first process runs.
            criu: The program.
            timeout_sec: After so long it is given up.

        Raises:
            SandboxError: They can't be dumped; the text states why.
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The time was up.
        """
        if not self._require_target().ids:
            raise SandboxError(
                "the local sandbox can't be copied: its root has a user id of this machine's, with which it could "
                "disturb CRIU; see the user ids in `harbor-gym doctor`"
            )
        details = {"root": root, "criu": as_object(criu)}
        answer = await self._ask_in_time({"op": "dump"}, details, timeout_sec, "it was dumped")
        (memory,) = answer["handles"]
        dump = Dump(memory, answer.get("last", 0), self._require_target().ids, self._before_policy)
        if answer["error"]:
            dump.close()
            raise SandboxError(f"the local sandbox can't be copied: {_told(answer)}")
        return dump

    async def restore(self, dump: Dump, criu: Criu, *, timeout_sec: float) -> None:
        """Bring back a dump's processes in this sandbox, which began with its files.

        Raises:
            SandboxError: They can't be restored; the text states why.
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The time was up.
        """
        details = {"ids": dump.ids, "criu": as_object(criu), "last": dump.last}
        # A packed dump is the supervisor's since its files were taken of it.
        handles = () if dump.is_packed else (dump.memory,)
        answer = await self._ask_in_time(
            {"op": "restore"}, details, timeout_sec, "processes were restored in it", *handles
        )
        if answer["error"]:
            raise SandboxError(f"the local sandbox's copy does not come up: {_told(answer)}")

    async def copy_written(self, target: Path) -> None:
        """Copy all files that the sandbox wrote into a directory, as a layer: deletions are devices 0:0.

        No process inside may run meanwhile. No link is followed, and no program of the sandbox is executed.

        Raises:
            SandboxError: It can't be copied.
        """
        if not self.is_running or self._process is None:
            raise self._lost("the local sandbox is not running")
        written = f"{cache_dir() / 'mountpoint'}/upper/."
        place = f"/proc/{self._process.pid}/ns"
        namespaces = [*([f"--user={place}/user"] if is_rootless() else []), f"--mount={place}/mnt"]
        copy = ("cp", "--archive", "--one-file-system", written, str(target))
        code, output = await run_tool("nsenter", *namespaces, *copy)
        if code != 0:
            raise SandboxError(f"the files of the local sandbox can't be copied: {output.strip()}")

    async def _remove_groups(self) -> None:
        """Remove control groups in place of a killed supervisor, once the kernel has ended the sandbox's processes."""
        for _ in range(int(_STOP_TIMEOUT_SEC / _REMOVE_PAUSE_SEC)):
            if cgroups.remove_groups([self._group]):
                return
            await asyncio.sleep(_REMOVE_PAUSE_SEC)

    @property
    @override
    def is_running(self) -> bool:
        """Whether commands can still be run."""
        return self._ready.done() and not self._is_lost

    def memory_kills(self) -> int | None:
        """Return the number of processes that the memory limit has killed; None without a control group for memory."""
        version, directory = self._require_target().cgroups.get("memory", (0, ""))
        return cgroups.memory_kills(version, Path(directory)) if directory else None

    def _lose(self) -> None:
        self._is_lost = True
        self._forget_view()
        self._carriers.hang_up()
        if not self._ready.done():
            self._ready.set_result({"error": "its supervisor ended before the sandbox was up"})
        for waiting in list(self._pending.values()):
            if not waiting.done():
                waiting.set_result({"lost": True})

    def _receive(self) -> None:
        try:
            data, handles, *_ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, ConnectionError):
            # After a reset, for a request that the other end left unread, its last messages and the end follow.
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._lose()
            return
        message = json.loads(data)
        if "lost" in message:
            self._loss = message
        elif "id" in message:
            waiting = self._pending.get(message["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result({**message, "handles": handles})
                return
        elif not self._ready.done():
            self._ready.set_result(message)
        elif "error" in message:  # else the answer to a start that was cancelled
            self._loss = {"lost": message["error"], "kind": ""}
        for handle in handles:
            os.close(handle)

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    def enter_argv(self, request: CommandSpec) -> list[str]:
        entered = {"target": self._require_target(), "spec": self._spec(request, self._ranks.outside_of_view)}
        return supervisor_argv("enter", to_json(entered))

    def _spec(self, request: CommandSpec, rank: str) -> CommandSpec:
        data_limit_bytes, user_processes = self._process_limits
        spec = self._filled_in(request, rank)
        return spec._replace(data_limit_bytes=data_limit_bytes, user_processes=user_processes)

    def _require_target(self) -> Target:
        if self._target is None:
            raise self._lost("the local sandbox is not running")
        return self._target

    async def switch_network(self, *, is_open: bool) -> None:
        """Give the sandbox a network, or remove it with every connection.

        Raises:
            SandboxError: No network is available.
            SandboxLostError: The sandbox is gone.
        """
        number, answered = self._expect_answer()
        try:
            self._control.send(json.dumps({"op": "network", "id": number, "is_open": is_open}).encode())
            answer = await answered
        except OSError as exc:
            raise SandboxLostError(f"the local sandbox can't change its network any more: {exc}") from exc
        finally:
            self._pending.pop(number, None)
        if "lost" in answer:
            raise self._lost("the local sandbox went away while its network changed")
        if answer["error"]:
            raise SandboxError(f"the local sandbox gets no network: {answer['error']}")

    @override
    async def enter_view(
        self, paths: Sequence[str], *, rank: str, also: Sequence[str] = (), apart: Sequence[str] = ()
    ) -> None:
        self._ranks.in_view = rank  # at once, as requests are answered in their order
        files = {"paths": list(paths), "also": list(also), "apart": list(apart)}
        answer = await self._ask({"op": "view"}, files, "its view changed")
        self._forget_view()
        if answer["error"]:
            self._ranks.in_view = None
            kind = "shared" if apart else "pristine"
            raise SandboxError(f"the local sandbox gets no {kind} view: {answer['error']}")
        (self._view,) = answer["handles"]
        self._asked = [*paths, *also]

    @override
    async def leave_view(self) -> None:
        await self._leave_view(keeps=False)

    async def _leave_view(self, *, keeps: bool) -> None:
        self._ranks.in_view = None
        await self._ask({"op": "view"}, {"paths": None, "keeps": keeps}, "its view changed")
        self._forget_view()

    @override
    async def merge_view(self, *, timeout_sec: float) -> str:
        answer = await self._ask_in_time({"op": "merge"}, {"asked": self._asked}, timeout_sec, "its view was merged")
        if answer["error"]:
            raise SandboxError(f"the local sandbox's view can't be merged: {answer['error']}")
        await self._leave_view(keeps=answer["is_used"])
        return answer["problem"]

    @override
    async def written_paths(self) -> list[str]:
        answer = await self._ask({"op": "written"}, {}, "its files were listed")
        if answer["error"]:
            raise SandboxError(f"the local sandbox's files can't be listed: {answer['error']}")
        return answer["paths"]

    def _forget_view(self) -> None:
        if self._view is not None:
            os.close(self._view)
            self._view = None

    async def _ask(self, message: Mapping[str, Any], details: Mapping[str, Any], what: str) -> dict[str, Any]:
        number, answered = self._expect_answer()
        try:
            self._send_spec({**message, "id": number}, details, [])
            answer = await answered
        finally:
            self._pending.pop(number, None)
        if "lost" in answer:
            raise self._lost(f"the local sandbox went away while {what}")
        return answer

    @override
    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        self._ranks.note_work(work)
        answer: dict[str, Any] = {}
        own = self._before_policy.arguments(work, arguments)
        for _ in range(_CLEANUP_TRIES):
            answer = await self._clean_up_once(work, own, timeout_sec)
            if not answer["error"]:
                self._before_policy.note(answer)
                return answer
        raise SandboxError(f"the local sandbox can't be cleaned up ({work}): {answer['error']}")

    async def _clean_up_once(self, work: str, arguments: Mapping[str, Any], timeout_sec: float) -> dict[str, Any]:
        message = {"op": "cleanup", "work": work, "is_untouched": not self.commands and not self._is_copy}
        return await self._ask_in_time(message, arguments, timeout_sec, f"it was cleaned up ({work})")

    async def _ask_in_time(
        self, message: Mapping[str, Any], details: Mapping[str, Any], timeout_sec: float, what: str, *handles: int
    ) -> dict[str, Any]:
        number, answered = self._expect_answer()
        try:
            self._send_spec({**message, "id": number}, details, handles)
            async with asyncio.timeout(timeout_sec):
                answer = await answered
        except TimeoutError:
            raise SandboxTimeoutError(f"the local sandbox took more than {timeout_sec:g} s while {what}") from None
        finally:
            self._pending.pop(number, None)
            if (answered.cancelled() or not answered.done()) and not self._is_lost:
                self._kill(number)
        if "lost" in answer:
            raise self._lost(f"the local sandbox went away while {what}")
        return answer

    def _expect_answer(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Return the number of a request to be sent, and the future of its answer."""
        if not self.is_running:
            raise self._lost("the local sandbox is not running")
        self._requests += 1
        answered = self._pending[self._requests] = asyncio.get_running_loop().create_future()
        return self._requests, answered

    def _lost(self, what: str) -> SandboxLostError:
        if not self._loss:
            return SandboxLostError(what)
        kind = SandboxMemoryError if self._loss["kind"] == "memory" else SandboxLostError
        return kind(f"{what}: {self._loss['lost']}")

    async def run(
        self,
        request: CommandSpec,
        *,
        timeout_sec: float | None = None,
        on_chunk: Chunk | None = None,
    ) -> Finished:
        """Run one command and wait for its exit, not for the end of its output.

        Args:
            request: The command.
            timeout_sec: Seconds after which the command's whole process group is killed.
            on_chunk: Called with output as it arrives.

        Raises:
            SandboxError: No such user or directory, or no shell, in the sandbox.
            SandboxLostError: The sandbox is gone.
            SandboxMemoryError: It is gone because its first process was killed for lack of memory.
            SandboxTimeoutError: The time was up; the command was killed.
        """
        number, answered = self._expect_answer()
        pipes: list[OutputPipe] = []
        source: InputPipe | None = None
        try:
            pipes = [OutputPipe("stdout", on_chunk), OutputPipe("stderr", on_chunk)]
            source = InputPipe()
            self._send(number, request, source, pipes)
            async with task_group() as group:
                source.close_near_end()  # an empty input
                readers = [group.create_task(pipe.read_all()) for pipe in pipes]
                answer = await self._answer(number, answered, timeout_sec, request)
                _, late = await asyncio.wait(readers, timeout=_DRAIN_SEC)
                for unfinished in late:
                    unfinished.cancel()
        finally:
            self._pending.pop(number, None)
            if (answered.cancelled() or not answered.done()) and not self._is_lost:
                self._kill(number)
            for pipe in [*pipes, *([source] if source else [])]:
                pipe.close()
        return Finished(answer["return_code"], pipes[0].output, pipes[1].output)

    async def _answer(
        self, number: int, answered: asyncio.Future[dict[str, Any]], timeout_sec: float | None, request: CommandSpec
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_sec):
                answer = await answered
        except TimeoutError:
            self._kill(number)
            raise SandboxTimeoutError(
                f"command timed out after {timeout_sec:g} seconds and was killed: {_short(request.command)}"
            ) from None
        if "lost" in answer:
            raise self._lost(f"the local sandbox went away while it ran {_short(request.command)}")
        if answer.get("error"):
            raise SandboxError(f"the local sandbox can't run {_short(request.command)}: {answer['error']}")
        return answer

    async def open(self, request: CommandSpec) -> PipedCommand:
        """Start a command and return while it runs; the caller talks to it through its streams, and ends it.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        number, answered = self._expect_answer()
        answered.add_done_callback(lambda _: self._pending.pop(number, None))
        command = PipedCommand(lambda: self._kill(number), answered)
        try:
            await command.connect()
            source, *pipes = command.far_ends
            self._send(number, request, source, pipes)
        except BaseException:
            answered.cancel()
            command.drop()
            raise
        return command

    @override
    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        if not self.is_running:
            raise self._lost("the local sandbox is not running")
        handles = () if self._view is None else (self._view,)
        try:
            await self._carriers.carry(self._require_target(), spec, work, *handles)
        except StreamEndedError as exc:
            raise self._lost(f"the local sandbox's transfer was cut off ({exc})") from exc

    def _send(self, number: int, request: CommandSpec, source: InputPipe, pipes: Sequence[OutputPipe]) -> None:
        handles = [source.far_end, *(pipe.far_end for pipe in pipes)]
        try:
            self._send_spec({"op": "exec", "id": number}, as_object(self._spec(request, self._ranks.now)), handles)
        finally:
            for pipe in (source, *pipes):
                pipe.close_far_end()

    def _send_spec(self, message: Mapping[str, Any], details: Mapping[str, Any], handles: Sequence[int]) -> None:
        """Send a request whose details may be longer than a message, with descriptors."""
        spec = os.memfd_create("spec")
        try:
            text = memoryview(json.dumps(details).encode())
            while text:
                text = text[os.write(spec, text) :]
            socket.send_fds(self._control, [json.dumps(message).encode()], [spec, *handles])
        except OSError as exc:
            raise SandboxLostError(f"the local sandbox takes no commands any more: {exc}") from exc
        finally:
            os.close(spec)

    def _kill(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"op": "kill", "id": number}).encode())


def _short(command: str) -> str:
    return repr(command if len(command) <= 200 else f"{command[:200]}…")


def _told(answer: Mapping[str, Any]) -> str:
    """Return why there is no copy, without the name of the supervisor's class."""
    return answer["error"].removeprefix("CheckpointError: ")
