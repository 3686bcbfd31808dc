"""Children of the supervisor that work in the sandbox with the supervisor's own code and credentials.

They execute no program of the sandbox, so programs that the policy replaced or removed can't hinder them.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

_MAX_ANSWER_BYTES = 60_000
"""Fits into a pipe: a child never waits for its answer to be read."""
_LAST_DESCRIPTOR = 1 << 20


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
            os.write(write, _encoded({"error": f"{type(exc).__name__}: {exc}"[:1000]}))
    finally:
        os._exit(0)


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
    return json.loads(text) if text else {"error": "its process was killed"}


class Children:
    """The running children, by the request that each of them answers."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, int]] = {}

    def start(self, request: int, enter: Callable[[], None], work: Callable[[], dict[str, Any]]) -> None:
        """Fork a child as :func:`fork_entered` does."""
        pid, read = fork_entered(enter, work)
        self._running[pid] = (request, read)

    def resume(self, pid: int) -> None:
        """Continue a child that a process of the sandbox has stopped."""
        if pid in self._running:
            os.kill(pid, signal.SIGCONT)

    def collect(self, pid: int) -> dict[str, Any] | None:
        """Return the message that answers an ended child's request; None if it is no child of these."""
        if pid not in self._running:
            return None
        request, read = self._running.pop(pid)
        return {"id": request, "return_code": 0, "error": "", **answer_of(read)}

    def kill(self, request: int) -> None:
        """Kill the child that would answer a request."""
        for pid, (running, _) in self._running.items():
            if running == request:
                os.kill(pid, signal.SIGKILL)
