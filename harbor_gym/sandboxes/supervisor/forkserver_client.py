"""Start supervisors: each process with sandboxes has a forkserver, which forks a supervisor in a millisecond.

Without it each sandbox would start a Python interpreter, which takes longer than the rest of the sandbox's start. An
ordinary user's forkserver is root of a user namespace, which has the namespaces of all its sandboxes: only so can two
of them be joined by a network or a volume.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from harbor_gym._runtime.processes import ask
from harbor_gym._runtime.rootless import USER_NAMESPACE, is_rootless
from harbor_gym.sandboxes import archive
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.tools import find_program

_BOOT = "import sys; sys.path[:0] = sys.argv.pop(1), sys.argv.pop(1); import main; sys.exit(main.main())"
_SUPERVISOR = Path(__file__).with_name("program")
_TREES = Path(archive.__file__).parent
"""The folder from which the supervisor's program imports beside the standard library."""
_REQUESTS = 3
"""The forkserver's descriptor of the socket for requests."""

_ANSWER_BYTES, _ANSWER_TIMEOUT_SEC = 64, 30.0


def supervisor_argv(*arguments: str) -> list[str]:
    """Return an argument vector for the supervisor's own program."""
    # -I -S: no site, no user paths, nothing from the caller's environment; 10 ms instead of 30.
    return [sys.executable, "-I", "-S", "-c", _BOOT, str(_SUPERVISOR), str(_TREES), *arguments]


def supervisor_environment() -> dict[str, str]:
    """Return the variables of this process's environment that the supervisor's program needs."""
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


def run_supervisor_program(*arguments: str) -> str:
    """Run the supervisor's own program and return its output. Blocks."""
    argv = supervisor_argv(*arguments)
    done = ask(*argv, timeout_sec=_ANSWER_TIMEOUT_SEC, environment=supervisor_environment())
    return done.stdout or done.stderr


class ForkedSupervisor:
    """A supervisor that is the forkserver's child, referred to by a pidfd."""

    returncode = None
    """Unknown: only its parent could know."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def kill(self) -> None:
        """Kill it.

        Raises:
            ProcessLookupError: It has ended.
        """
        if self._pidfd < 0:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> None:
        """Wait for its end. Idempotent; one caller at a time."""
        if self._pidfd < 0:
            return
        await readable(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1


async def fork_supervisor(config: str, control: socket.socket, *handles: int) -> ForkedSupervisor:
    """Start a supervisor, or a transfer's process.

    Args:
        config: Its configuration, as JSON.
        control: Its end of the control socket; the caller closes its own copy.
        handles: Further descriptors that it needs.

    Raises:
        SandboxStartError: No forkserver is available.
    """
    answers, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with answers:
        with far_end:
            _forkserver_of_this_process.request(config, [control.fileno(), far_end.fileno(), *handles])
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_SEC):
                await readable(answers.fileno())
        except TimeoutError:
            raise SandboxStartError(f"no local sandbox was started within {_ANSWER_TIMEOUT_SEC:g} s") from None
        output, received, *_ = socket.recv_fds(answers, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    if not received:
        raise SandboxStartError("the process that starts local sandboxes exited: run the episode again")
    return ForkedSupervisor(int(output), received[0])


def forkserver_pid() -> int:
    """Return the process id of this process's forkserver; 0 if there is none."""
    return _forkserver_of_this_process.pid


def end_forkserver() -> None:
    """End this process's forkserver, if it has one; the next sandbox gets another. Running sandboxes stay."""
    _forkserver_of_this_process.end()


class _Forkserver:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self.pid = 0

    def request(self, config: str, handles: list[int]) -> None:
        with self._lock:
            if self._requests is not None:
                try:
                    socket.send_fds(self._requests, [config.encode()], handles)
                except OSError:
                    self._end()
                else:
                    return
            try:
                self._requests = self._start()
                socket.send_fds(self._requests, [config.encode()], handles)
            except OSError as exc:
                raise SandboxStartError(f"the process that starts local sandboxes can't be started: {exc}") from exc

    def _start(self) -> socket.socket:
        near_end, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = supervisor_argv("forkserver", str(_REQUESTS), str(os.getpid()))
        if is_rootless():
            argv = [find_program("unshare") or "unshare", *USER_NAMESPACE, *argv]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, far_end.fileno(), _REQUESTS),
        ]
        with far_end:
            self.pid = os.posix_spawn(argv[0], argv, supervisor_environment(), file_actions=actions, setsid=True)
        return near_end

    def end(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0

    def forget(self) -> None:
        """Leave the forkserver to the process that this one was forked from."""
        if self._requests is not None:
            self._requests.close()
        self.__init__()


async def readable(handle: int) -> None:
    """Wait until a descriptor can be read, or has no other end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(handle, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(handle)


_forkserver_of_this_process = _Forkserver()
atexit.register(_forkserver_of_this_process.end)
os.register_at_fork(after_in_child=_forkserver_of_this_process.forget)
