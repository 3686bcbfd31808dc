"""The steps between entering a sandbox and executing a command there.

Paths are opened and users are looked up here, after the process has entered the sandbox; no program of the sandbox is
executed before the process has given up the rights that a sandbox may not have.

As much as possible is done before the fork, as every page that a forked Python touches is copied.
"""

import contextlib
import errno
import os
import resource
import signal
import stat
from typing import NamedTuple, NoReturn

import accounts
import files
from kernel import cgroups, programs, system_calls
from kernel.calls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, drop_privileges, prctl
from kernel.capabilities import RANKS
from messages import MAX_OPEN_FILES, OPEN_FILES, CommandSpec

_MAX_ARGUMENT_BYTES = 128 << 10
"""Linux's MAX_ARG_STRLEN: the longest single argument execve takes, with its NUL."""
REFUSED = 126
"""The exit status of a command that could not be started."""


class RequestError(Exception):
    """The request can't be carried out (no such user, no such directory); the message is for the caller."""


class Command(NamedTuple):
    """A request with its user resolved: all that a forked process needs to become it."""

    spec: CommandSpec
    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: dict[str, str]
    first: int
    """A descriptor of the static program."""


def resolve(spec: CommandSpec, first: int) -> Command:
    """Look up a request's user, unless the caller did. To be called in the sandbox's mount namespace.

    Args:
        spec: The request.
        first: A descriptor of the static program.

    Raises:
        RequestError: There is no such user or group.
    """
    try:
        uid, gid, groups, home = spec.identity or accounts.identity(spec.user, accounts.read())
    except accounts.UnknownAccountError as exc:
        raise RequestError(str(exc)) from None
    return Command(spec, uid, gid, groups, {"HOME": home, **spec.env}, first)


def become_plain() -> None:
    """Reset the state that commands inherit: the usual file mode mask, default signal handlers, no blocked signal."""
    os.umask(0o022)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def bound_open_files() -> None:
    """Limit the open files of this process and its descendants for good: root inside can't raise the limit."""
    hard = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


def _become(command: Command, *, dies_with_parent: bool) -> NoReturn:
    """Turn this process, root in all of the sandbox's namespaces, into the requested command."""
    spec = command.spec
    # While it has the capability: setuid programs then keep working inside.
    system_calls.install()
    try:
        drop_privileges(command.uid, command.gid, list(command.groups), RANKS[spec.rank])
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        ids = f"user id {command.uid} is none that this sandbox has, or one of its groups {command.groups}"
        raise RequestError(ids) from None
    if dies_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if spec.is_root:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    if spec.joins_outputs:
        os.dup2(1, 2)
    try:
        os.chdir(spec.cwd)
    except OSError as exc:
        raise RequestError(f"working directory {spec.cwd!r} can't be entered: {exc.strerror}") from None
    # Python ignores these two signals.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    bound_open_files()
    if limit := spec.data_limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if limit := spec.user_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    path, arguments = _program(spec)
    # By the static program: a file inside whose interpreter is /proc/self/exe finds that, and never the host's Python.
    os.execve(command.first, [programs.NAME, path, *arguments], command.environment)


def _program(spec: CommandSpec) -> tuple[str, list[str]]:
    """Return the path of the program to execute, found in the sandbox, and its arguments.

    Raises:
        RequestError: There is no such program.
    """
    if argv := spec.argv:
        return _path_of(argv[0], spec.env.get("PATH", "")), list(argv)
    if (found := files.find_program(files.SHELLS)) is None:
        raise RequestError(files.NO_SHELL)
    name, path = found
    return path, [name, *_shell_arguments(spec.command)]


def _path_of(program: str, search_path: str) -> str:
    if "/" in program:
        return program
    for directory in search_path.split(":"):
        path = f"{directory or '.'}/{program}"
        if os.access(path, os.X_OK):
            return path
    raise RequestError(f"there is no program {program!r} in PATH ({search_path})")


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


def run_child(
    command: Command, report: int, cgroup_fds: list[int], *, user_namespace: int = -1, stdio: list[int] | None = None
) -> NoReturn:
    """Turn a process just forked in the sandbox's namespaces into the command.

    With ``user_namespace``, the pidfd of a process of the sandbox, it enters that process's user namespace. With
    ``stdio`` it gets a session of its own; without, it ends with its parent. A failure is written to ``report``, and
    the exit status is 126.
    """
    try:
        if stdio:
            os.setsid()
            for target, handle in enumerate(stdio):
                os.dup2(handle, target)
        cgroups.join(cgroup_fds)
        if user_namespace >= 0:
            os.setns(user_namespace, os.CLONE_NEWUSER)
        _become(command, dies_with_parent=not stdio)
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            os.write(report, str(exc).encode("utf-8", "replace")[:2000])
    finally:
        os._exit(REFUSED)


def give_pipes(handles: list[int], uid: int, gid: int) -> None:
    """Give pipes to a user, who can then open them again by /dev/stdout."""
    for handle in handles:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            with contextlib.suppress(OSError):  # a pipe of another user, who started this process
                os.fchown(handle, uid, gid)
