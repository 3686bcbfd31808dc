"""One sandbox's supervisor: a small process between the caller and the sandbox. Runs by itself, stdlib only.

``serve`` builds the sandbox (private mount namespace, overlay on tmpfs, bubblewrap), then forks one process into it
for every request on its control socket, and ends with the first of: the socket's end, the caller's death, the
sandbox's death. ``enter`` runs one process in a living sandbox with the caller's own stdio.

From before the sandbox lives until a child has become its command, these processes are not dumpable (nothing inside can
read their memory or reach their executable) and can import nothing.
"""

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from inside import RequestError, run_child
from kernel import KEPT_CAPABILITIES, MS_BIND, MS_NODEV, MS_PRIVATE, MS_REC, NAMESPACES, harden_self, mount, start_time

_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Settings of the whole machine, which root could write without any capability. bubblewrap leaves /proc/sys open."""
_HIDDEN_PROC = ("kcore", "keys", "timer_list", "sched_debug", "kmsg")
_UNSHARED = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
"""Not --unshare-all: it makes a user namespace too, in which root's commands, being outside it, could do everything."""
_KILLED = 128 + signal.SIGKILL
_END_SETTLE_MS = 50
"""Wait for PID 1's end after a command died of SIGKILL: long enough for the kernel, short for a plain ``kill -9``."""
_REQUEST_BYTES = 4096
_REQUEST_DESCRIPTORS = 4
_SHM_BYTES = 64 << 20
"""Docker's own default for /dev/shm."""
_INIT = (
    "b='echo up; exec >/dev/null 2>&1; while read -r _; do :; done'; "
    'if command -v bash >/dev/null 2>&1; then exec bash --norc --noprofile -c "$b"; fi; eval "$b"'
)
"""PID 1: bash reaps what it inherits. Its stdin ends when the supervisor does, and the sandbox with it."""


class _Supervisor:
    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.config = config
        self.running: dict[int, tuple[int, int]] = {}
        self.bwrap = 0
        self.init_pidfd = -1
        self.mount_namespace = -1
        self.keep_alive = -1

    def reply(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(message).encode())

    def build(self) -> None:
        """Mount the overlay, start bubblewrap, and wait until PID 1 of the sandbox runs."""
        os.unshare(os.CLONE_NEWNS)
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        place: str = self.config["mountpoint"]
        mount("harbor-gym", place, "tmpfs", MS_NODEV, f"mode=0700,size={self.config['storage_bytes']}")
        os.chdir(place)
        for name in ("lower", "upper", "work", "root"):
            os.mkdir(name)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
        mount(self.config["rootfs"], "lower", None, MS_BIND)
        os.chmod("upper", 0o755)  # noqa: PTH101  # as above
        mount("overlay", "root", "overlay", MS_NODEV, "lowerdir=lower,upperdir=upper,workdir=work")
        init = self._spawn_bwrap()
        self.init_pidfd = os.pidfd_open(init)
        self.mount_namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY)
        os.setns(self.init_pidfd, NAMESPACES)
        self.reply(ready=True, init=init, start_time=start_time(init))

    def _spawn_bwrap(self) -> int:
        log = os.memfd_create("bwrap")
        stdin_read, self.keep_alive = os.pipe()
        up_read, up_write = os.pipe()
        info_read, info_write = os.pipe()
        os.set_inheritable(info_write, True)
        argv = self._bwrap_argv(info_write)
        actions = [
            (os.POSIX_SPAWN_DUP2, stdin_read, 0),
            (os.POSIX_SPAWN_DUP2, up_write, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        self.bwrap = os.posix_spawn(argv[0], argv, dict(os.environ), file_actions=actions)
        for handle in (stdin_read, up_write, info_write):
            os.close(handle)
        info = b""
        while chunk := os.read(info_read, 4096):
            info += chunk
        is_up = os.read(up_read, 16)
        os.close(info_read)
        os.close(up_read)
        if not is_up:
            said = os.pread(log, 2000, 0).decode("utf-8", "replace").strip()
            raise RequestError(said or "bubblewrap ended without a word")
        os.close(log)
        return int(json.loads(info)["child-pid"])

    def _bwrap_argv(self, info_fd: int) -> list[str]:
        argv = [self.config["bwrap"], "--bind", f"{self.config['mountpoint']}/root", "/"]
        argv += ["--dev", "/dev", "--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
        argv += ["--remount-ro", "/dev", "--proc", "/proc"]
        for name in _READ_ONLY_PROC:
            argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        for name in _HIDDEN_PROC:
            if os.path.exists(f"/proc/{name}"):  # noqa: PTH110  # pathlib would cost 20 ms of imports at every start
                argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
        argv += [*_UNSHARED, "--hostname", "sandbox", "--die-with-parent", "--as-pid-1", "--new-session"]
        argv += ["--info-fd", str(info_fd), "--cap-drop", "ALL"]
        for name in KEPT_CAPABILITIES:
            argv += ["--cap-add", name.upper()]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        return [*argv, "--chdir", "/", "--", "/bin/sh", "-c", _INIT]

    def serve(self, parent: int) -> None:
        """Answer requests until the caller, the control socket or the sandbox is gone."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_write)
        poll = select.poll()
        for handle in (self.control.fileno(), parent, wake_read, self.init_pidfd):
            poll.register(handle, select.POLLIN)
        while True:
            ready = {handle for handle, _ in poll.poll()}
            if wake_read in ready:
                os.read(wake_read, 4096)
            self.reap()
            if parent in ready or self.init_pidfd in ready:
                return
            if self.control.fileno() in ready and not self.handle_request():
                return

    def handle_request(self) -> bool:
        try:
            payload, handles = _receive(self.control)
        except ConnectionError:
            return False
        if not payload:
            return False
        message = json.loads(payload)
        try:
            if message["op"] == "exec":
                self.start_command(message["id"], handles)
            elif message["op"] == "kill":
                self.kill(message["id"])
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def start_command(self, request: int, handles: list[int]) -> None:
        spec_handle, *stdio = handles
        spec = json.loads(os.pread(spec_handle, os.fstat(spec_handle).st_size, 0))
        report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for target, handle in enumerate(stdio):
                os.dup2(handle, target)
            run_child(spec, self.mount_namespace, report_write)
        os.close(report_write)
        self.running[pid] = (request, report_read)

    def kill(self, request: int) -> None:
        for pid, (running, _) in self.running.items():
            if running == request:
                # Both: a child that has not yet called setsid has no group of its own.
                for send in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError):
                        send(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect the dead and report the commands among them, unless they died of the sandbox's own end."""
        finished: list[dict[str, Any]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid not in self.running:
                continue
            request, report = self.running.pop(pid)
            error = b""
            with contextlib.suppress(BlockingIOError):
                error = os.read(report, 4096)
            os.close(report)
            code = os.waitstatus_to_exitcode(status)
            finished.append({"id": request, "return_code": code if code >= 0 else 128 - code, "error": error.decode()})
        if any(message["return_code"] == _KILLED for message in finished) and self.is_ending():
            return
        for message in finished:
            self.reply(**message)

    def is_ending(self) -> bool:
        """Tell whether PID 1 is dead. The kernel kills all others first and waits until they are collected."""
        poll = select.poll()
        poll.register(self.init_pidfd, select.POLLIN)
        return bool(poll.poll(_END_SETTLE_MS))

    def tear_down(self) -> None:
        """Kill PID 1, which takes every process of its namespace along, and wait until all are gone."""
        with contextlib.suppress(OSError):
            if self.init_pidfd >= 0:
                signal.pidfd_send_signal(self.init_pidfd, signal.SIGKILL)
            elif self.bwrap:
                os.kill(self.bwrap, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message with its descriptors; ``socket.recv_fds`` would let every later command inherit those."""
    space = socket.CMSG_LEN(_REQUEST_DESCRIPTORS * array.array("i").itemsize)
    payload, ancillary, _, _ = control.recvmsg(_REQUEST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    handles = array.array("i")
    for _, _, data in ancillary:
        handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    return payload, list(handles)


def _ignore(_number: int, _frame: object) -> None:
    """Handle SIGCHLD by waking the poll, which the wakeup descriptor does."""


def serve(control_fd: int, config: dict[str, Any]) -> int:
    """Build one sandbox and serve it until its end; return the exit status."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        parent = os.pidfd_open(config["parent"])
    except ProcessLookupError:
        return 0
    harden_self()
    supervisor = _Supervisor(control, config)
    try:
        supervisor.build()
        supervisor.serve(parent)
    except (OSError, RequestError, ValueError) as exc:
        supervisor.reply(error=str(exc))
        return 1
    finally:
        supervisor.tear_down()
    return 0


def enter(target: dict[str, Any]) -> int:
    """Run one command in a living sandbox with this process's stdio; return the command's exit status."""
    init: int = target["init"]
    try:
        pidfd = os.pidfd_open(init)
        mount_namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY)
        if start_time(init) != target["start_time"]:
            raise ProcessLookupError
    except (ProcessLookupError, FileNotFoundError):
        print("harbor_gym: the sandbox is gone", file=sys.stderr)  # noqa: T201  # a script's own stderr
        return 125
    harden_self()
    os.setns(pidfd, NAMESPACES)
    report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        run_child({**target["spec"], "die_with_parent": True}, mount_namespace, report_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BlockingIOError):
        if error := os.read(report_read, 4096):
            print(f"harbor_gym: {error.decode()}", file=sys.stderr)  # noqa: T201  # a script's own stderr
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the mode that the command line names."""
    match sys.argv[1:]:
        case ["serve", handle, text]:
            return serve(int(handle), json.loads(text))
        case ["enter", text]:
            return enter(json.loads(text))
        case _:
            raise SystemExit("usage: serve FD JSON | enter JSON")
