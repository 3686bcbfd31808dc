"""What happens between entering a sandbox and executing a command there.

Every path is opened and every user looked up here, after the process has entered the sandbox; nothing of the sandbox is
executed before the process has given up what a sandbox may not have.
"""

import contextlib
import os
import resource
import signal
from typing import Any, NoReturn

import cgroups
import syscalls
from kernel import PR_SET_PDEATHSIG, drop_privileges, prctl

_ACCOUNT_FILE_BYTES, _READ_BYTES = 1 << 20, 1 << 15
_ACCOUNT_LINE_FIELDS = 4
_MAX_ARGUMENT_BYTES = 128 << 10
"""Linux's MAX_ARG_STRLEN: the longest single argument execve takes, with its NUL."""
_SHELL_PATHS = ("/bin", "/usr/bin", "/usr/local/bin")


class RequestError(Exception):
    """The request can't be carried out (no such user, no such directory); the message is for the caller."""


def _accounts(path: str) -> list[list[str]]:
    """Read passwd or group; what can't be read counts as empty, and a FIFO in its place can't block."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        content = b""
        while len(content) < _ACCOUNT_FILE_BYTES and (chunk := os.read(handle, _READ_BYTES)):
            content += chunk
    except OSError:
        return []
    finally:
        os.close(handle)
    text = content.decode("utf-8", "replace")
    return [fields for line in text.splitlines() if len(fields := line.split(":")) >= _ACCOUNT_LINE_FIELDS]


def _number(name: str, accounts: list[list[str]], path: str, what: str) -> int:
    if name.isdecimal():
        return int(name)
    for fields in accounts:
        if fields[0] == name and fields[2].isdecimal():
            return int(fields[2])
    raise RequestError(f"{what} {name!r} is not in the sandbox's {path}")


def _identity(user: str) -> tuple[int, int, list[int], str]:
    """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid`` against the sandbox's own accounts."""
    name, _, group = user.partition(":")
    users, named = _accounts("/etc/passwd"), _accounts("/etc/group")
    uid = _number(name, users, "/etc/passwd", "user")
    login, gid, home = "", 0, "/"
    for fields in users:
        if fields[2] == str(uid) and fields[3].isdecimal():
            login, gid = fields[0], int(fields[3])
            home = fields[5] if len(fields) > 5 and fields[5] else "/"  # passwd's sixth field
            break
    if group:
        return uid, (gid := _number(group, named, "/etc/group", "group")), [gid], home
    members = [f for f in named if login and login in f[3].split(",") and f[2].isdecimal()]
    return uid, gid, [gid, *(int(fields[2]) for fields in members)], home


def _become(spec: dict[str, Any]) -> NoReturn:
    """Turn this process, already in the sandbox's namespaces, into the requested command."""
    uid, gid, groups, home = _identity(spec["user"])
    environment: dict[str, str] = {"HOME": home, **spec["env"]}
    drop_privileges(uid, gid, groups)
    if spec.get("die_with_parent"):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.chdir(spec["cwd"])
    except OSError as exc:
        raise RequestError(f"working directory {spec['cwd']!r} can't be entered: {exc.strerror}") from None
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    arguments = _shell_arguments(spec["command"])
    if limit := spec.get("data_limit_bytes"):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if limit := spec.get("user_processes"):
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    syscalls.install()
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


def run_child(spec: dict[str, Any], mount_namespace: int, report: int, joins: list[int]) -> NoReturn:
    """Turn a process just forked into the requested command; where that fails, say why on ``report`` and exit 126."""
    try:
        cgroups.join(joins)
        os.setns(mount_namespace, os.CLONE_NEWNS)
        _become(spec)
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            os.write(report, str(exc).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(126)
