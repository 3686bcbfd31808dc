"""Children of the supervisor that work in the sandbox with the supervisor's own code and credentials.

They execute no program of the sandbox, so programs that the policy replaced or removed can't hinder them.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

import control_socket

type Serve = Callable[[dict[str, Any], list[int]], dict[str, Any]]
"""Does one work of a worker, given the message and its descriptors; returns the answer."""

_MAX_ANSWER_BYTES = 60_000
"""Fits into a pipe: a child never waits for its answer to be read."""
_MAX_MESSAGE_BYTES = 4096
_LAST_DESCRIPTOR = 1 << 20
_ANSWERED = {"return_code": 0, "error": ""}


def fork_entered(enter: Callable[[], None], work: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Fork a child that enters the sandbox's namespaces and works there.

    The child is in the PID namespace of the caller's children, is not dumpable if the caller is not, and has only the
    standard descriptors of the caller: a link of the sandbox into /proc/self/fd leads nowhere.

    Args:
        enter: Enters the other namespaces.
        work: Returns the answer.

    Returns:
        The child's pid, and the descriptor from which :func:`answer_of` reads its answer once it has ended.
    """
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        signal.set_wakeup_fd(-1)
        enter()
        os.closerange(3, write)
        os.closerange(write + 1, _LAST_DESCRIPTOR)
        os.write(write, _encoded(work()))
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            os.write(write, _error(exc))
    finally:
        os._exit(0)


def _error(exc: BaseException) -> bytes:
    return _encoded({"error": f"{type(exc).__name__}: {exc}"[:1000]})


def _encoded(answer: dict[str, Any]) -> bytes:
    text = json.dumps(answer).encode()
    if len(text) > _MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(text)} bytes")
    return text


def answer_of(read: int) -> dict[str, Any]:
    """Return an ended child's answer, and close the descriptor; an ``error`` if it was killed before."""
    try:
        text = os.read(read, _MAX_ANSWER_BYTES)
    except BlockingIOError:
        text = b""
    finally:
        os.close(read)
    return _decoded(text)


def _decoded(text: bytes) -> dict[str, Any]:
    return json.loads(text) if text else {"error": "its process was killed"}


class _Worker:
    """A child that does one work after another; each message says whether it stays for the next."""

    def __init__(self, serve: Serve) -> None:
        self.channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.request = 0
        """That which it works on; 0 for none."""
        self.stays = False
        self.pid = os.fork()
        if self.pid == 0:
            _work(far_end, serve)
        far_end.close()

    def ask(self, request: int, message: dict[str, Any], handles: list[int], *, stays: bool) -> None:
        """Send it a work; if that fails it has been killed, and :meth:`Children.collect` answers the request."""
        self.request, self.stays = request, stays
        with contextlib.suppress(OSError):
            socket.send_fds(self.channel, [json.dumps({**message, "stays": stays}).encode()], handles)

    def read(self) -> bytes:
        """Return its answer; empty if there is none, or not yet."""
        try:
            return self.channel.recv(_MAX_ANSWER_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return b""


def _work(channel: socket.socket, serve: Serve) -> NoReturn:
    """Serve until a work that is the last, a failure, or the other end's close."""
    try:
        signal.set_wakeup_fd(-1)
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, _LAST_DESCRIPTOR)
        stays = True
        while stays:
            text, handles = control_socket.receive(channel, _MAX_MESSAGE_BYTES)
            if not text:
                break
            message = json.loads(text)
            stays = message["stays"]
            channel.send(_encoded(serve(message, handles)))
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            channel.send(_error(exc))
    finally:
        os._exit(0)


class Children:
    """The running children, by the request that each of them answers.

    Args:
        poll: Gets the descriptor that announces the answer of a worker which stays.
    """

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._running: dict[int, tuple[int, int]] = {}
        self._workers: dict[int, _Worker] = {}

    def start(self, request: int, enter: Callable[[], None], work: Callable[[], dict[str, Any]]) -> None:
        """Fork a child as :func:`fork_entered` does."""
        pid, read = fork_entered(enter, work)
        self._running[pid] = (request, read)

    def ask(
        self, request: int, message: dict[str, Any], handles: list[int], serve: Serve, *, begins: bool, ends: bool
    ) -> None:
        """Give a work to the worker that waits; without one, fork one.

        Args:
            request: The request that it answers.
            message: What ``serve`` gets.
            handles: Descriptors that ``serve`` gets, and closes.
            serve: Does the work, in the child.
            begins: Whether a forked worker stays for further works.
            ends: Whether this is a worker's last work: its answer is collected when the worker is gone.
        """
        worker = next((worker for worker in self._workers.values() if not worker.request), None)
        if worker is None:
            worker = _Worker(serve)
            self._workers[worker.pid] = worker
            self._poll.register(worker.channel, select.POLLIN)
            ends = ends or not begins
        if ends:
            self._poll.unregister(worker.channel)
        worker.ask(request, message, handles, stays=not ends)

    def answers(self) -> list[dict[str, Any]]:
        """Return the messages that answer the requests of workers which stay, as far as they are done."""
        found: list[dict[str, Any]] = []
        for worker in self._workers.values():
            if worker.request and worker.stays and (text := worker.read()):
                found.append(_message(worker.request, text))
                worker.request = 0
        if any(answer["error"] for answer in found):
            self.dismiss()  # it ends with its failure
        return found

    def dismiss(self) -> None:
        """End the worker that waits, if there is one: no program of the sandbox runs beside it."""
        for worker in list(self._workers.values()):
            if not worker.request:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                self._drop(worker)

    def _drop(self, worker: _Worker) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(worker.channel)
        worker.channel.close()
        del self._workers[worker.pid]

    def resume(self, pid: int) -> None:
        """Continue a child that a process of the sandbox has stopped."""
        if pid in self._running or pid in self._workers:
            os.kill(pid, signal.SIGCONT)

    def collect(self, pid: int) -> dict[str, Any] | None:
        """Return the message that answers an ended child's request; None if it is no child of these, or had none."""
        if (worker := self._workers.get(pid)) is not None:
            answer = _message(worker.request, worker.read()) if worker.request else None
            self._drop(worker)
            return answer
        if pid not in self._running:
            return None
        request, read = self._running.pop(pid)
        return {**_ANSWERED, "id": request, **answer_of(read)}

    def kill(self, request: int) -> None:
        """Kill the child that would answer a request."""
        running = [pid for pid, (answers, _) in self._running.items() if answers == request]
        for pid in (*running, *(pid for pid, worker in self._workers.items() if worker.request == request)):
            os.kill(pid, signal.SIGKILL)


def _message(request: int, text: bytes) -> dict[str, Any]:
    return {**_ANSWERED, "id": request, **_decoded(text)}
