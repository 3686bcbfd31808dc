"""One sandbox's supervisor: a small process between the caller and the sandbox. Runs as a script, stdlib only.

``serve`` builds the sandbox (private mount namespace, overlay on tmpfs, bubblewrap), then forks one process into it
for every request on its control socket, and ends with the first of: the socket's end, the caller's death, the
sandbox's death. ``enter`` runs one process in a living sandbox with the caller's own stdio.

Every file a request leads to is opened and every user is looked up after the process has entered the sandbox, and
nothing of the sandbox is executed before the process has given up what a sandbox may not have. Until then the process
is not dumpable (nothing inside can read its memory or reach its executable) and can import nothing.

Source: capabilities(7), pid_namespaces(7), setns(2), bwrap(1).
"""

import array as _  # socket.recv_fds imports it on its first call, when nothing can be imported any more
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

_KEPT_CAPABILITIES = {
    "cap_chown": 0,
    "cap_dac_override": 1,
    "cap_fowner": 3,
    "cap_fsetid": 4,
    "cap_kill": 5,
    "cap_setgid": 6,
    "cap_setuid": 7,
    "cap_setpcap": 8,
    "cap_net_bind_service": 10,
    "cap_sys_chroot": 18,
    "cap_setfcap": 31,
}
"""What root keeps inside: enough for apt, useradd, su and chown; neither devices, mounts nor raw sockets."""

_LAST_CAPABILITY = 63
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_MS_NODEV, _MS_NOSUID, _MS_BIND, _MS_REC, _MS_PRIVATE = 4, 2, 4096, 16384, 1 << 18
_NAMESPACES = os.CLONE_NEWPID | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWNET | os.CLONE_NEWCGROUP
_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Settings of the whole machine, which root could write without any capability. bubblewrap leaves /proc/sys open."""
_HIDDEN_PROC = ("kcore", "keys", "timer_list", "sched_debug", "kmsg")
_SHM_BYTES = 64 << 20
"""Docker's own default for /dev/shm."""
_ACCOUNT_FILE_BYTES = 1 << 20
_ACCOUNT_LINE_FIELDS = 4
_MAX_ARGUMENT_BYTES = 128 << 10
"""Linux's MAX_ARG_STRLEN: the longest single argument execve takes, with its NUL."""
_SHELL_PATHS = ("/bin", "/usr/bin", "/usr/local/bin")
_INIT = (
    "if command -v bash >/dev/null 2>&1; then exec bash --norc --noprofile -c 'echo up; while read -r _; do :; done'; "
    "fi; echo up; while read -r _; do :; done"
)
"""PID 1: bash reaps what it inherits. Its stdin ends when the supervisor does, and the sandbox with it."""

_libc = ctypes.CDLL(None, use_errno=True)


class RequestError(Exception):
    """The request can't be carried out (no such user, no such directory); the message is for the caller."""


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, argument: int) -> None:
    _checked(_libc.prctl(option, argument, 0, 0, 0), f"prctl {option}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if value is None else value.encode() for value in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(result, f"mount {kind or 'bind'} on {target}")


def _clear_inheritable() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, data), "capget")
    data[2] = data[5] = 0
    _checked(_libc.capset(header, data), "capset")
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities")


def _harden_self() -> None:
    """Make this process unreadable from inside the sandbox, and unable to import anything from there."""
    _prctl(_PR_SET_DUMPABLE, 0)
    _clear_inheritable()
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def _drop_privileges(uid: int, gid: int, groups: list[int]) -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT_CAPABILITIES.values():
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL: a capability this kernel doesn't have
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


# --- inside the sandbox, before exec ---------------------------------------------------------------------------------


def _accounts(path: str) -> list[list[str]]:
    """Read passwd or group; what can't be read counts as empty, and a FIFO in its place can't block."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(handle, _ACCOUNT_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(handle)
    return [fields for line in text.splitlines() if len(fields := line.split(":")) >= _ACCOUNT_LINE_FIELDS]


def _number(name: str, path: str, what: str) -> int:
    if name.isdecimal():
        return int(name)
    for fields in _accounts(path):
        if fields[0] == name and fields[2].isdecimal():
            return int(fields[2])
    raise RequestError(f"{what} {name!r} is not in the sandbox's {path}")


def _identity(user: str) -> tuple[int, int, list[int], str]:
    """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid`` against the sandbox's own accounts."""
    name, _, group = user.partition(":")
    uid = _number(name, "/etc/passwd", "user")
    login, gid, home = "", 0, "/"
    for fields in _accounts("/etc/passwd"):
        if fields[2] == str(uid) and fields[3].isdecimal():
            login, gid = fields[0], int(fields[3])
            home = fields[5] if len(fields) > 5 and fields[5] else "/"  # noqa: PLR2004  # passwd's sixth field
            break
    if group:
        return uid, (gid := _number(group, "/etc/group", "group")), [gid], home
    members = [f for f in _accounts("/etc/group") if login and login in f[3].split(",") and f[2].isdecimal()]
    return uid, gid, [gid, *(int(fields[2]) for fields in members)], home


def _become(spec: dict[str, Any]) -> NoReturn:
    """Turn this process, already in the sandbox's namespaces, into the requested command."""
    uid, gid, groups, home = _identity(spec["user"])
    environment: dict[str, str] = {"HOME": home, **spec["env"]}
    _drop_privileges(uid, gid, groups)
    if spec.get("die_with_parent"):
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.chdir(spec["cwd"])
    except OSError as exc:
        raise RequestError(f"working directory {spec['cwd']!r} can't be entered: {exc.strerror}") from None
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    arguments = _shell_arguments(spec["command"])
    for shell in ("bash", "sh"):
        for directory in _SHELL_PATHS:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.execve(f"{directory}/{shell}", [shell, *arguments], environment)
    raise RequestError("the image has neither bash nor sh: a task's image needs a shell")


def _shell_arguments(command: str) -> list[str]:
    """Return ``-c COMMAND``, or a script in memory where the command is longer than one argument can be."""
    encoded = command.encode()
    if len(encoded) < _MAX_ARGUMENT_BYTES:
        return ["-c", command]
    script = os.memfd_create("command", 0)
    while encoded:
        encoded = encoded[os.write(script, encoded) :]
    os.lseek(script, 0, os.SEEK_SET)
    return [f"/proc/self/fd/{script}"]


def _run_child(spec: dict[str, Any], mount_namespace: int, report: int) -> NoReturn:
    try:
        os.setns(mount_namespace, os.CLONE_NEWNS)
        _become(spec)
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            os.write(report, str(exc).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(126)


# --- serve -----------------------------------------------------------------------------------------------------------


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
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
        place: str = self.config["mountpoint"]
        _mount("harbor-gym", place, "tmpfs", _MS_NODEV, f"mode=0700,size={self.config['storage_bytes']}")
        os.chdir(place)
        for name in ("lower", "upper", "work", "root"):
            os.mkdir(name)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
        _mount(self.config["rootfs"], "lower", None, _MS_BIND)
        os.chmod("upper", 0o755)  # noqa: PTH101  # as above
        _mount("overlay", "root", "overlay", _MS_NODEV, "lowerdir=lower,upperdir=upper,workdir=work")
        init = self._spawn_bwrap()
        self.init_pidfd = os.pidfd_open(init)
        self.mount_namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY)
        os.setns(self.init_pidfd, _NAMESPACES)
        self.reply(ready=True, init=init, start_time=_start_time(init))

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
        argv += ["--unshare-all", "--hostname", "sandbox", "--die-with-parent", "--as-pid-1", "--new-session"]
        argv += ["--info-fd", str(info_fd), "--cap-drop", "ALL"]
        for name in _KEPT_CAPABILITIES:
            argv += ["--cap-add", name.upper()]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        return [*argv, "--chdir", "/", "--", "/bin/sh", "-c", _INIT]

    def serve(self, parent: int) -> None:
        """Answer requests until the caller, the control socket or the sandbox is gone."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
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
            payload, handles, _, _ = socket.recv_fds(self.control, 4096, 4, socket.MSG_CMSG_CLOEXEC)
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
            _run_child(spec, self.mount_namespace, report_write)
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
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self.running:
                continue
            request, report = self.running.pop(pid)
            error = b""
            with contextlib.suppress(BlockingIOError):
                error = os.read(report, 4096)
            os.close(report)
            code = os.waitstatus_to_exitcode(status)
            self.reply(id=request, return_code=code if code >= 0 else 128 - code, error=error.decode() or None)

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


def _start_time(pid: int) -> str:
    """Return field 22 of /proc/PID/stat: with the pid it names a process beyond doubt."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(handle, 4096).rsplit(b")", 1)[1].split()[19].decode()
    finally:
        os.close(handle)


def serve(control_fd: int, config: dict[str, Any]) -> int:
    """Build one sandbox and serve it until its end; return the exit status."""
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        parent = os.pidfd_open(config["parent"])
    except ProcessLookupError:
        return 0
    _harden_self()
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


# --- enter -----------------------------------------------------------------------------------------------------------


def enter(target: dict[str, Any]) -> int:
    """Run one command in a living sandbox with this process's stdio; return the command's exit status."""
    init: int = target["init"]
    try:
        pidfd = os.pidfd_open(init)
        mount_namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY)
        if _start_time(init) != target["start_time"]:
            raise ProcessLookupError
    except (ProcessLookupError, FileNotFoundError):
        print("harbor_gym: the sandbox is gone", file=sys.stderr)  # noqa: T201  # a script's own stderr
        return 125
    _harden_self()
    os.setns(pidfd, _NAMESPACES)
    report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        _run_child({**target["spec"], "die_with_parent": True}, mount_namespace, report_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BlockingIOError):
        if error := os.read(report_read, 4096):
            print(f"harbor_gym: {error.decode()}", file=sys.stderr)  # noqa: T201  # a script's own stderr
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", handle, text]:
            sys.exit(serve(int(handle), json.loads(text)))
        case ["enter", text]:
            sys.exit(enter(json.loads(text)))
        case _:
            sys.exit("usage: supervisor.py serve FD JSON | enter JSON")
