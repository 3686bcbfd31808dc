"""The caller's side of one sandbox's supervisor: start it, run commands through it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym._runtime.cache import mountpoint
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.sandboxes.archive.transfers import Work
from harbor_gym.sandboxes.archive.trees.records import StreamEndedError
from harbor_gym.sandboxes.errors import (
    SandboxError,
    SandboxLostError,
    SandboxMemoryError,
    SandboxStartError,
    SandboxTimeoutError,
)
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import Chunk, InputPipe, OutputPipe
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.sandboxes.supervisor.before_policy import BeforePolicy
from harbor_gym.sandboxes.supervisor.carrier import Carriers
from harbor_gym.sandboxes.supervisor.forkserver_client import (
    ForkedSupervisor,
    fork_supervisor,
    supervisor_argv,
)
from harbor_gym.sandboxes.supervisor.program.messages import (
    CommandSpec,
    Criu,
    NetworkChange,
    SupervisorConfig,
    Target,
    as_object,
    own_namespaces,
    to_json,
)
from harbor_gym.sandboxes.supervisor.running import Finished, Ranks
from harbor_gym.sandboxes.tools import run_tool

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
    """The processes and the files of one sandbox at one moment, in memory. The holder must close it."""

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


class SupervisedSandbox:
    """One running sandbox. Made by :meth:`start`, ended by :meth:`stop`, bound to the loop that started it.

    Every method raises ``SandboxLostError`` when the sandbox is gone.

    Args:
        kind: Its kind, for messages.
    """

    def __init__(self, kind: str = "local") -> None:
        self._name = f"the {kind} sandbox"
        self._ranks = Ranks()
        self._before_policy = BeforePolicy()
        self._carriers = Carriers()
        self._asked: list[str] = []
        """The paths that the view carries."""
        self.commands = 0
        """Number of commands run or prepared so far."""
        self.user_ids: list[int] = []
        """The ids of the configuration's ``users``."""
        self._control, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._process: ForkedSupervisor | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests = 0
        self._is_lost = False
        self._loss: dict[str, Any] = {}
        self._groups: set[str] = set()
        self._target: Target | None = None
        self._view: int | None = None
        self._is_copy = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self, config: SupervisorConfig, *, copied: Dump | None = None) -> None:
        """Start the sandbox, and return when its PID 1 runs. Its image's layers are not changed.

        After any failure, call :meth:`stop`.

        Args:
            config: What it is to be.
            copied: Begin with the files of another sandbox, as its policy left them; :meth:`restore` brings its
                processes. The image is the same.

        Raises:
            SandboxStartError: The kernel refused, a directory can't be made, or there was no answer in
                time.
        """
        cgroups.remove_abandoned_groups()
        self._groups = {Path(directory).name for _, directory in config.cgroups.values()}
        if copied is not None:
            self._is_copy = True
            config = config._replace(is_copy=True)
            self._send_spec({}, {"ids": copied.ids, "is_packed": copied.is_packed}, [copied.memory])
        # A cancellation between the fork and the assignment would leave a supervisor that nobody ends.
        await shielded(self._start_supervisor(to_json(config)))
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._receive)
        limit_sec = _READY_TIMEOUT_SEC if copied is None else COPY_TIMEOUT_SEC
        try:
            async with asyncio.timeout(limit_sec):
                answer = await self._ready
        except TimeoutError:
            raise SandboxStartError(f"{self._name} did not come up within {limit_sec:g} s") from None
        if "error" in answer:
            raise SandboxStartError(f"{self._name} could not be set up: {answer['error']}")
        ids = tuple(map(tuple, answer["ids"]))
        self.user_ids = answer["user_ids"]
        if copied is not None:
            self._before_policy = copied.before_policy.in_copy(copied.ids, ids)
            self._ranks.note_policy()
        whose = config.cgroups, config.is_rootless, config.filters
        own = own_namespaces(config)
        self._target = Target(answer["init"], answer["start_time"], ids, *whose, config.limits, own)

    async def _start_supervisor(self, config: str) -> None:
        try:
            self._process = await fork_supervisor(config, self._far_end)
        finally:
            self._far_end.close()  # while it is open here, the supervisor's end is not seen

    async def stop(self) -> None:
        """Kill everything inside and wait until it is gone. Idempotent.

        Raises:
            SandboxTimeoutError: The supervisor had to be killed; the kernel still takes the sandbox down with it.
        """
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()  # this is the request: the supervisor ends the sandbox when its socket ends
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
            raise SandboxTimeoutError(f"{self._name} did not end within {_STOP_TIMEOUT_SEC:g} s") from None
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
                f"{self._name} can't be copied: its root has a user id of this machine's, with which it could "
                "disturb CRIU; see the user ids in `harbor-gym doctor`"
            )
        details = {"root": root, "criu": as_object(criu)}
        answer = await self._ask_in_time({"op": "dump"}, details, timeout_sec, "it was dumped")
        (memory,) = answer["handles"]
        dump = Dump(memory, answer.get("last", 0), self._require_target().ids, self._before_policy)
        if answer["error"]:
            dump.close()
            raise SandboxError(f"{self._name} can't be copied: {_told(answer)}")
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
            raise SandboxError(f"{self._name}'s copy does not come up: {_told(answer)}")

    async def copy_written(self, target: Path) -> None:
        """Copy all files that the sandbox wrote into a directory, as a layer: deletions are devices 0:0.

        No process inside may run meanwhile. No link is followed, and no program of the sandbox is executed.

        Raises:
            SandboxError: It can't be copied.
        """
        if not self.is_running or self._process is None:
            raise self._lost(f"{self._name} is not running")
        written = f"{mountpoint()}/upper/."
        place = f"/proc/{self._process.pid}/ns"
        namespaces = [*([f"--user={place}/user"] if is_rootless() else []), f"--mount={place}/mnt"]
        copy = ("cp", "--archive", "--one-file-system", written, str(target))
        code, output = await run_tool("nsenter", *namespaces, *copy)
        if code != 0:
            raise SandboxError(f"the files of the local sandbox can't be copied: {output.strip()}")

    async def _remove_groups(self) -> None:
        """Remove control groups in place of a killed supervisor, once the kernel has ended the sandbox's processes."""
        for _ in range(int(_STOP_TIMEOUT_SEC / _REMOVE_PAUSE_SEC)):
            if cgroups.remove_groups(self._groups):
                return
            await asyncio.sleep(_REMOVE_PAUSE_SEC)

    @property
    def is_running(self) -> bool:
        """Whether commands can still be run."""
        return self._ready.done() and not self._is_lost

    @property
    def first_process(self) -> int:
        """The id of the sandbox's first process on this machine."""
        return self._require_target().init

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
                waiting.set_result({"lost": True})  # no exception: each request states what it was doing

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
        for handle in handles:  # of an answer for which nobody waits any more
            os.close(handle)

    # --- commands ------------------------------------------------------------------------------------------------

    def enter_argv(self, request: CommandSpec) -> list[str]:
        """Return an argument vector that runs a command with the stdio of its starter.

        The command sees the sandbox's own files, even during a view.
        """
        entered = {"target": self._require_target(), "spec": self._filled_in(request, self._ranks.outside_of_view)}
        return supervisor_argv("enter", to_json(entered))

    def _filled_in(self, spec: CommandSpec, rank: str) -> CommandSpec:
        """Return a command, completed with its user's ids from before the policy and its rank."""
        self.commands += 1
        return spec._replace(identity=self._before_policy.identity(spec.user), rank=rank)

    def _require_target(self) -> Target:
        if self._target is None:
            raise self._lost(f"{self._name} is not running")
        return self._target

    async def switch_network(self, change: NetworkChange) -> None:
        """Give the sandbox a network, or remove it; every connection of the one before ends.

        Raises:
            SandboxError: No network is available.
            SandboxLostError: The sandbox is gone.
        """
        answer = await self._ask({"op": "network"}, as_object(change), "its network changed")
        if answer["error"]:
            raise SandboxError(f"{self._name} gets no network: {answer['error']}")

    async def share(self, work: str, details: Mapping[str, Any], *handles: int) -> int:
        """Make or take up something that several sandboxes share, before a policy is in this one.

        Args:
            work: ``make_networks``, ``join_networks`` or ``lend``, or a change of the sandbox's mounts: ``volume``,
                ``memory``, ``take_off``, ``shm`` or ``close_root``. See the supervisor's ``shared`` module.
            details: The work's arguments.
            handles: A descriptor of what is taken up.

        Returns:
            A descriptor of what was made, which the caller closes; -1 if nothing was.

        Raises:
            SandboxStartError: The kernel refuses.
            SandboxTimeoutError: It took too long.
        """
        message, what = {"op": "share", "work": work}, f"it was joined to others ({work})"
        answer = await self._ask_in_time(message, details, _READY_TIMEOUT_SEC, what, *handles)
        if answer["error"]:
            raise SandboxStartError(f"{self._name} can't be joined to others ({work}): {answer['error']}")
        return next(iter(answer["handles"]), -1)

    async def enter_view(
        self, paths: Sequence[str], *, rank: str, also: Sequence[str] = (), apart: Sequence[str] = ()
    ) -> None:
        """Switch commands and transfers to the original image, with the sandbox's current state of these paths.

        Args:
            paths: What is carried; where it is not there, the view has nothing there either.
            rank: That of the commands in the view.
            also: What is carried where it is there; else the image's stays.
            apart: If there are any: see the sandbox's own files instead, with empty directories of the view's alone at
                these paths.

        Raises:
            SandboxError: The kernel refuses.
        """
        self._ranks.in_view = rank  # at once, as requests are answered in their order
        files = {"paths": list(paths), "also": list(also), "apart": list(apart)}
        answer = await self._ask({"op": "view"}, files, "its view changed")
        self._forget_view()
        if answer["error"]:
            self._ranks.in_view = None
            kind = "shared" if apart else "pristine"
            raise SandboxError(f"{self._name} gets no {kind} view: {answer['error']}")
        (self._view,) = answer["handles"]
        self._asked = [*paths, *also]

    async def leave_view(self) -> None:
        """Switch commands and transfers back to the sandbox's own files, and drop the view. Idempotent."""
        await self._leave_view(keeps=False)

    async def _leave_view(self, *, keeps: bool) -> None:
        self._ranks.in_view = None
        await self._ask({"op": "view"}, {"paths": None, "keeps": keeps}, "its view changed")
        self._forget_view()

    async def merge_view(self, *, timeout_sec: float) -> str:
        """Copy the files written in the view to the sandbox's own, and leave the view.

        Processes in the view keep its files.

        Returns:
            Why not all could be copied; empty where all was.

        Raises:
            SandboxError: It failed.
            SandboxTimeoutError: The time was up.
        """
        answer = await self._ask_in_time({"op": "merge"}, {"asked": self._asked}, timeout_sec, "its view was merged")
        if answer["error"]:
            raise SandboxError(f"{self._name}'s view can't be merged: {answer['error']}")
        await self._leave_view(keeps=answer["is_used"])
        return answer["problem"]

    async def written_paths(self) -> list[str]:
        """Return the paths written or deleted in the sandbox since its start, a few thousand at most.

        Raises:
            SandboxError: They can't be listed.
        """
        answer = await self._ask({"op": "written"}, {}, "its files were listed")
        if answer["error"]:
            raise SandboxError(f"{self._name}'s files can't be listed: {answer['error']}")
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
            raise self._lost(f"{self._name} went away while {what}")
        return answer

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Run a function of the supervisor's ``cleanup`` module, without a program of the sandbox.

        Args:
            work: Its name.
            arguments: What it is called with.
            timeout_sec: After so long it is killed.

        Returns:
            What it returned.

        Raises:
            SandboxError: It failed.
            SandboxTimeoutError: The time was up.
        """
        self._ranks.note_work(work)
        answer: dict[str, Any] = {}
        own = self._before_policy.arguments(work, arguments)
        for _ in range(_CLEANUP_TRIES):
            answer = await self._clean_up_once(work, own, timeout_sec)
            if not answer["error"]:
                self._before_policy.note(answer)
                return answer
        raise SandboxError(f"{self._name} can't be cleaned up ({work}): {answer['error']}")

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
            raise SandboxTimeoutError(f"{self._name} took more than {timeout_sec:g} s while {what}") from None
        finally:
            self._pending.pop(number, None)
            if (answered.cancelled() or not answered.done()) and not self._is_lost:
                self._kill(number)  # else the next request waits behind work that nobody wants
        if "lost" in answer:
            raise self._lost(f"{self._name} went away while {what}")
        return answer

    def _expect_answer(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Return the number of a request to be sent, and the future of its answer."""
        if not self.is_running:
            raise self._lost(f"{self._name} is not running")
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
            raise self._lost(f"{self._name} went away while it ran {_short(request.command)}")
        if answer.get("error"):
            raise SandboxError(f"{self._name} can't run {_short(request.command)}: {answer['error']}")
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

    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        """Transfer files between a process that sees the sandbox's and ``work``, this machine's side of the stream.

        Raises:
            SandboxTimeoutError: It took too long.
            Exception: What ``work`` raises.
        """
        if not self.is_running:
            raise self._lost(f"{self._name} is not running")
        handles = () if self._view is None else (self._view,)
        try:
            await self._carriers.carry(self._require_target(), spec, work, *handles)
        except StreamEndedError as exc:
            raise self._lost(f"{self._name}'s transfer was cut off ({exc})") from exc

    def _send(self, number: int, request: CommandSpec, source: InputPipe, pipes: Sequence[OutputPipe]) -> None:
        handles = [source.far_end, *(pipe.far_end for pipe in pipes)]
        try:
            spec = self._filled_in(request, self._ranks.now)
            self._send_spec({"op": "exec", "id": number}, as_object(spec), handles)
        finally:
            for pipe in (source, *pipes):
                pipe.close_far_end()

    def _send_spec(self, message: Mapping[str, Any], details: Mapping[str, Any], handles: Sequence[int]) -> None:
        """Send a request whose details may be longer than a message, with descriptors."""
        # A file in memory, since the socket takes a message whole or not at all, and a command may have megabytes.
        spec = os.memfd_create("spec")
        try:
            text = memoryview(json.dumps(details).encode())
            while text:
                text = text[os.write(spec, text) :]
            socket.send_fds(self._control, [json.dumps(message).encode()], [spec, *handles])
        except OSError as exc:
            raise SandboxLostError(f"{self._name} takes no commands any more: {exc}") from exc
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
