"""The steps between a request and a command in a sandbox.

Programs and users are looked up in the sandbox's files. The static program does the rest (``kernel/steps.py``): no
program of the sandbox is executed before the process has given up the rights that a sandbox may not have.
"""

import contextlib
import os
import resource
import signal
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

import accounts
import core_files
import files
from kernel import cgroups, system_calls
from kernel.calls import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    drop_privileges,
    lose_capabilities,
)
from kernel.capabilities import RANKS
from kernel.steps import ANY, AT_FDCWD, Steps
from messages import MAX_OPEN_FILES, OPEN_FILES, CgroupLimits, CommandSpec

_MAX_ARGUMENT_BYTES = 128 << 10
"""Linux's MAX_ARG_STRLEN: the longest single argument execve takes, with its NUL."""
_CORE_HANDLER = core_files.handler()
"""Asked outside of all sandboxes, before a policy is there."""
REFUSED = 126
"""The exit status of a command that could not be started."""


class RequestError(Exception):
    """The request can't be carried out (no such user, no such directory); the message is for the caller."""


class Command(NamedTuple):
    """A request with its user and its program resolved: all that a process needs to become it."""

    spec: CommandSpec
    uid: int
    gid: int
    groups: tuple[int, ...]
    environment: dict[str, str]
    path: str
    """The program, in the sandbox."""

    argv: list[str]
    script: int
    """A descriptor that the program needs, to be closed by the owner; -1 for none."""


def resolve(spec: CommandSpec) -> Command:
    """Look up a request's program, and its user, unless the caller did. To be called in the sandbox's mount namespace.

    Raises:
        RequestError: There is no such program, user or group.
    """
    try:
        uid, gid, groups, home = spec.identity or accounts.identity(spec.user, accounts.read())
    except accounts.UnknownAccountError as exc:
        raise RequestError(str(exc)) from None
    return Command(spec, uid, gid, groups, {"HOME": home, **spec.env}, *_program(spec))


def become_plain() -> None:
    """Reset the state that commands inherit: the usual file mode mask, default signal handlers, no blocked signal."""
    os.umask(0o022)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def open_files() -> tuple[int, int]:
    """Return the soft and the hard limit of open files in a sandbox: set for good, as root inside can't raise them."""
    hard = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return min(OPEN_FILES, hard), hard


def limits() -> list[tuple[int, int, int]]:
    """Return the limits of every process of a sandbox: kind, soft and hard."""
    found = [(resource.RLIMIT_NOFILE, *open_files())]
    if _CORE_HANDLER:
        found.append((resource.RLIMIT_CORE, core_files.LIMIT, core_files.LIMIT))
    return found


def substitutes(
    limits: CgroupLimits, places: dict[str, tuple[int, str]], *, is_rootless: bool
) -> list[tuple[int, int]]:
    """Return the limits of a command in place of control groups that can't be made: kind and limit.

    They are the memory of each process by itself, in bytes, and each user's number of processes, which does not limit
    the machine's root.
    """
    found: list[tuple[int, int]] = []
    if limits.memory_bytes and "memory" not in places:
        found.append((resource.RLIMIT_DATA, limits.memory_bytes))
    if limits.max_processes and is_rootless and "pids" not in places:
        found.append((resource.RLIMIT_NPROC, limits.max_processes))
    return found


def set_limits(steps: Steps) -> None:
    """Set :func:`limits`."""
    for kind, soft, hard in limits():
        _limit(steps, kind, soft, hard)


def _limit(steps: Steps, kind: int, soft: int, hard: int) -> None:
    steps.call("prlimit64", 0, kind, steps.data(struct.pack("2Q", soft, hard)), 0, what="limit")


def steps_of(
    command: Command,
    report: int,
    cgroup_fds: list[int],
    *,
    further_limits: Iterable[tuple[int, int]] = (),
    mount_namespace: int = -1,
    user_namespace: int = -1,
    dies_with_parent: bool = False,
) -> Steps:
    """Return what turns a process, root in the sandbox's PID namespace, into the command.

    Args:
        command: The command.
        report: Gets a failure; the exit status is 126 then.
        cgroup_fds: Descriptors of the sandbox's control groups.
        further_limits: The sandbox's :func:`substitutes`.
        mount_namespace: A descriptor of the one to enter; -1 if the process is there.
        user_namespace: A pidfd of a process of the sandbox, whose user namespace it enters; -1 if it is there.
        dies_with_parent: Whether it ends with its parent.

    Raises:
        ValueError: The command can't be executed as it is.
    """
    spec = command.spec
    namespaces = [(mount_namespace, os.CLONE_NEWNS), (user_namespace, os.CLONE_NEWUSER)]
    entered = [(handle, kind) for handle, kind in namespaces if handle >= 0]
    steps = Steps(report, [handle for handle, _ in entered] + cgroup_fds)
    steps.close_on_execute()
    if command.script >= 0:
        steps.inherited.append(command.script)
    cgroups.join_by(steps, cgroup_fds)
    for handle, kind in entered:
        steps.call("setns", handle, kind, what="enter the sandbox")
    # While it has the capability: setuid programs then keep working inside.
    system_calls.install(steps)
    steps.call("chdir", spec.cwd, what=f"working directory {spec.cwd!r} can't be entered")
    lose_capabilities(steps, spec.dropped)
    if spec.no_new_privileges:
        steps.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    drop_privileges(steps, command.uid, command.gid, command.groups, RANKS[spec.rank])
    if spec.directory:
        steps.call("mkdirat", AT_FDCWD, spec.directory, 0o700, tolerates=ANY)
    if dies_with_parent:
        steps.call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if spec.is_root:
        steps.call("prctl", PR_SET_CHILD_SUBREAPER, 1)
    if spec.joins_outputs:
        steps.call("dup3", 1, 2, 0)
    set_limits(steps)
    for kind, limit in further_limits:
        _limit(steps, kind, limit, limit)
    # By the static program: a file inside whose interpreter is /proc/self/exe finds that, and never the host's Python.
    steps.execute(command.path, command.argv, command.environment)
    return steps


def _program(spec: CommandSpec) -> tuple[str, list[str], int]:
    """Return the path of the program to execute, found in the sandbox, its arguments, and a descriptor for it.

    Raises:
        RequestError: There is no such program.
    """
    if argv := spec.argv:
        return _path_of(argv[0], spec.env.get("PATH", "")), list(argv), -1
    if (found := files.find_program(files.SHELLS)) is None:
        raise RequestError(files.NO_SHELL)
    name, path = found
    arguments, script = _shell_arguments(spec.command)
    return path, [name, *arguments], script


def _path_of(program: str, search_path: str) -> str:
    if "/" in program:
        return program
    for directory in search_path.split(":"):
        path = f"{directory or '.'}/{program}"
        if os.access(path, os.X_OK):
            return path
    raise RequestError(f"there is no program {program!r} in PATH ({search_path})")


def _shell_arguments(command: str) -> tuple[list[str], int]:
    """Return ``-c COMMAND``, or a script in memory where the command is longer than one argument can be."""
    encoded = command.encode()
    if len(encoded) < _MAX_ARGUMENT_BYTES:
        return ["-c", command], -1
    script = os.memfd_create("command", os.MFD_CLOEXEC)
    while encoded:
        encoded = encoded[os.write(script, encoded) :]
    os.lseek(script, 0, os.SEEK_SET)
    return [f"/proc/self/fd/{script}"], script


def run_child(steps: Steps, first: int, stdio: list[int] | None = None) -> NoReturn:
    """Turn a forked process into the static program, which makes the calls; with ``stdio`` in a session of its own."""
    try:
        if stdio:
            os.setsid()
            for target, handle in enumerate(stdio):
                os.dup2(handle, target)
        steps.become(first)
    finally:
        os._exit(REFUSED)


def give_pipes(handles: list[int], uid: int, gid: int) -> None:
    """Give pipes to a user, who can then open them again by /dev/stdout."""
    for handle in handles:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            with contextlib.suppress(OSError):  # a pipe of another user, who started this process
                os.fchown(handle, uid, gid)
