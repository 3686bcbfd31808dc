"""A process that stays outside of a sandbox, to start another process there after the supervisor has entered."""

import array
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from kernel.calls import PR_SET_PDEATHSIG, prctl

_REQUEST_BYTES, _MOST_HANDLES = 64, 5
_START, _END = b"start", b"end"
type Become = Callable[[list[int]], NoReturn]
"""Executes the program in a forked process, with the given descriptors."""


class Outsider:
    """Runs at most one process at a time, and ends, which the supervisor notices, when that process ends by itself."""

    def __init__(self, become: Become) -> None:
        """Fork. Call this before the supervisor enters the sandbox, and before it opens any descriptor of its own.

        Args:
            become: What the process to start does.
        """
        self._control, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(far_end, become, supervisor)
            finally:
                os._exit(1)
        far_end.close()

    def start(self, handles: list[int]) -> None:
        """Start the process with at most five descriptors."""
        socket.send_fds(self._control, [_START], handles)

    def end(self) -> None:
        """End the process, and wait for its end."""
        with contextlib.suppress(OSError):  # it ended with its process
            self._control.send(_END)
            self._control.recv(_REQUEST_BYTES)


def _serve(control: socket.socket, become: Become, supervisor: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        return
    # Above all the caller's socket: the caller must see it close when the supervisor ends.
    low, high = control.fileno(), os.sysconf("SC_OPEN_MAX")
    os.closerange(3, low)
    os.closerange(low + 1, high)
    running, own = 0, os.getpid()
    while True:
        message, handles = _receive(control)
        if message == _START:
            running = os.fork()
            if running == 0:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == own:  # else that was killed before
                    become(handles)
                return
            signal.signal(signal.SIGCHLD, lambda _number, _frame: os._exit(0))
            for handle in handles:
                os.close(handle)
        elif message == _END:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if running:
                os.kill(running, signal.SIGKILL)
                os.waitpid(running, 0)
            running = 0
            control.send(_END)
        else:
            return


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    handles = array.array("i")
    message, ancillary, _, _ = control.recvmsg(_REQUEST_BYTES, socket.CMSG_LEN(_MOST_HANDLES * handles.itemsize))
    for _, _, data in ancillary:
        handles.frombytes(data)
    return message, list(handles)
