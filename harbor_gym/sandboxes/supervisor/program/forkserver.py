"""Forks supervisors and transfer processes, so that Python starts only once for a caller.

Sandboxes don't depend on it: each ends with its own control socket or with the caller. A transfer process ends with it.
It collects the processes that a supervisor has killed and left: no caller waits 20 ms for a network device to go.
A request is the configuration as JSON, with the new process's socket to the caller and a socket for the answer.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

import control_socket
import serving
import transfers
from child import become_plain
from kernel.calls import PR_SET_CHILD_SUBREAPER, prctl

_REQUEST_BYTES = 1 << 17
_LAST_DESCRIPTOR = 1 << 20
_REAP_SEC, _PAUSE_SEC = 1.0, 0.002


def run(requests_fd: int, caller: int) -> int:
    """Serve until the caller is gone or has closed its end; return the exit status."""
    os.closerange(requests_fd + 1, _LAST_DESCRIPTOR)  # descriptors that a library of the caller left inheritable
    os.set_inheritable(requests_fd, False)
    requests = socket.socket(fileno=requests_fd)
    try:
        parent = os.pidfd_open(caller)
    except ProcessLookupError:
        return 0
    become_plain()
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, control_socket.ignore)
    signal.set_wakeup_fd(wake_write)
    poll = select.poll()
    for handle in (requests_fd, parent, wake_read):
        poll.register(handle, select.POLLIN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    is_warm = False
    forked: set[int] = set()
    while True:
        ready = {handle for handle, _ in poll.poll()}
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(forked)
        if parent in ready:
            break
        if requests_fd in ready:
            payload, handles = control_socket.receive(requests, _REQUEST_BYTES)
            if not payload:
                break
            config = json.loads(payload)
            if not is_warm and "transfers" not in config:
                serving.warm_up(config)
                is_warm = True
            forked.add(_fork(config, handles, (requests_fd, parent, wake_read, wake_write)))
    _reap_killed(forked)
    return 0


def _fork(config: Any, handles: list[int], own: tuple[int, ...]) -> int:
    control, answer, *further = handles
    pid = os.fork()
    if pid == 0:
        _become(config, control, further, (answer, *own))
    for handle in (control, *further):
        os.close(handle)
    # The child is not collected before this returns, so the pid is not reused.
    pidfd = os.pidfd_open(pid)
    with contextlib.suppress(OSError), socket.socket(fileno=answer) as caller:
        socket.send_fds(caller, [str(pid).encode()], [pidfd])
    os.close(pidfd)
    return pid


def _become(config: Any, control: int, further: list[int], not_its_own: tuple[int, ...]) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for handle in not_its_own:
            os.close(handle)
        os.setsid()
        if "transfers" in config:
            status = transfers.serve(control, config["transfers"], *further)
        else:
            status = serving.serve(control, config, os.getppid())
    except BaseException as exc:  # a forked child must never return into its parent's code
        sys.excepthook(type(exc), exc, exc.__traceback__)
    finally:
        os._exit(status)


def _reap(forked: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            forked.discard(pid)


def _reap_killed(forked: set[int]) -> None:
    """Collect what ended supervisors have killed and left: where PID 1 collects nothing, it would stay for ever."""
    deadline = time.monotonic() + _REAP_SEC
    with contextlib.suppress(OSError):  # a kernel that does not list children
        while time.monotonic() < deadline:
            _reap(forked)
            with open("/proc/thread-self/children", encoding="ascii") as listed:  # noqa: PTH123  # pathlib: 20 ms
                if forked.issuperset(map(int, listed.read().split())):
                    return
            time.sleep(_PAUSE_SEC)
