"""A sandbox that a container runtime (Apptainer) makes: what is done before it, and to it from outside.

``launch`` makes a user namespace and mounts the image in it, then runs the runtime there. ``prepare`` closes what a
runtime leaves open. ``clean_up`` does the works of ``grading/cleanup.py``. None of them executes anything of the image.

The runtime gets a PID namespace of its own around the container's: whatever it starts ends with that. That ends with
the caller, killed or not.

Source: user_namespaces(7), pid_namespaces(7), the kernel's filesystems/overlayfs.rst.
"""

import contextlib
import errno
import json
import os
import signal
import sys
from typing import Any, NoReturn

import files
from child import become_plain
from children import answer_of, fork_entered
from grading import cleanup
from kernel import packet_filter, programs
from kernel.calls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    PR_SET_PDEATHSIG,
    become_root,
    bind_read_only,
    harden_self,
    mount,
    prctl,
    write_file,
)
from kernel.ids import COUNT, Ids
from kernel.procfs import start_time
from messages import NAMESPACES, ContainerConfig, Target
from namespaces import HIDDEN_PROC, MAX_TERMINALS, OF_INIT, READ_ONLY_PROC

FIRST = "/.harbor-gym-init"
"""Where the container's first process is found; removed from the files once it runs."""
FAILED = 1
_XATTR_PROBE = "user.harbor_gym"


def launch(config: ContainerConfig) -> int:
    """Run the container until its end or the caller's; return the runtime's exit status.

    The first process reports "up" on standard output and ends with standard input. What goes wrong before is on
    standard error.
    """
    _end_with(config.parent)
    child = _fork_in_namespaces(config)
    return _status_of(child)


def _end_with(parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(FAILED)


def _status_of(pid: int) -> int:
    """Wait for a child, and for all others that are this process's to collect; return its status."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _fork_in_namespaces(config: ContainerConfig) -> int:
    """Fork the process that makes the namespaces; root's gets the caller's ids, an ordinary user's has them already."""
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(from_child)
        os.close(to_child)
        _guarded(lambda: _make_namespaces(config, parent, to_parent, from_parent))
    os.close(to_parent)
    os.close(from_parent)
    if not config.is_ordinary and os.read(from_child, 1):
        for name in ("uid_map", "gid_map"):
            write_file(f"/proc/{pid}/{name}", f"0 0 {COUNT}\n")
        os.write(to_child, b"g")
    os.close(from_child)
    os.close(to_child)
    return pid


def _guarded(work: Any) -> NoReturn:
    """Do the work of a forked child, which must never return into its parent's code."""
    try:
        os._exit(work())
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.write(2, f"{exc}\n".encode())
    finally:
        os._exit(FAILED)


def _make_namespaces(config: ContainerConfig, parent: int, ready: int, mapped: int) -> int:
    if not config.is_ordinary:
        os.unshare(os.CLONE_NEWUSER)
        os.write(ready, b"u")
        if not os.read(mapped, 1):
            return FAILED
        os.setgroups([])
    become_root()
    network = 0 if config.has_network else os.CLONE_NEWNET
    os.unshare(os.CLONE_NEWNS | NAMESPACES & ~os.CLONE_NEWNET | network)
    # Now: a change of ids or capabilities takes it back.
    _end_with(parent)
    if network:
        packet_filter.raise_loopback()
    here = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        os.close(mapped)
        _guarded(lambda: _be_first(config, here))
    os.close(ready)
    os.close(mapped)
    return _status_of(pid)


def _be_first(config: ContainerConfig, parent: int) -> int:
    """Be the first process around the container: mount its files, run the runtime, collect what it leaves."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (0, parent):  # 0: the parent is outside of this PID namespace
        return FAILED
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("harbor-gym", config.place, "tmpfs", MS_NODEV, f"mode=0755,size={config.storage_bytes}")
    os.chdir(config.place)
    for name in ("lower", "upper", "work", "root", "home", "tmp"):
        os.mkdir(name, 0o755)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
    _run(config.mount_image)
    _mount_overlay(config)
    _write_files(config)
    pid = os.fork()
    if pid == 0:
        _guarded(lambda: _become_runtime(config))
    return _status_of(pid)


def _run(argv: tuple[str, ...]) -> None:
    """Run a program of the host's to its end, its output on standard error.

    Raises:
        OSError: It failed.
    """
    pid = os.fork()
    if pid == 0:
        _guarded(lambda: _execute(argv, dict(os.environ)))
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(errno.EIO, f"{argv[0]} ended with status {code}")


def _execute(argv: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    os.dup2(2, 1)
    os.execve(argv[0], argv, environment)


def _mount_overlay(config: ContainerConfig) -> None:
    """Mount what can be written over the image: the kernel's overlay, or where that can't be had, a program's.

    Raises:
        OSError: There is neither.
    """
    options = "lowerdir=lower,upperdir=upper,workdir=work"
    if config.overlay != "fuse":
        try:
            os.setxattr("upper", _XATTR_PROBE, b"")  # tmpfs has user attributes since Linux 6.6
            os.removexattr("upper", _XATTR_PROBE)
            mount("overlay", "root", "overlay", MS_NODEV, f"{options},userxattr")
        except OSError:
            if config.overlay == "kernel" or not config.mount_overlay:
                raise
        else:
            return
    _run(config.mount_overlay)


def _write_files(config: ContainerConfig) -> None:
    """Write among the container's files what a runtime would bind there, and its first process.

    No link of the image is followed: each may lead anywhere.
    """
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"root/{name}", 0o755)  # noqa: PTH102  # as above
    place = os.open("root/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, content in config.etc.items():
            _replace(place, name, content.encode(), 0o644)
    finally:
        os.close(place)
    place = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        first = programs.open_first()
        _replace(place, FIRST.lstrip("/"), os.pread(first, os.fstat(first).st_size, 0), programs.MODE)
        os.close(first)
    finally:
        os.close(place)


def _replace(place: int, name: str, content: bytes, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place)
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place)
    try:
        os.write(handle, content)
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _become_runtime(config: ContainerConfig) -> NoReturn:
    with open("runtime.conf", "w") as text:  # noqa: PTH123  # as above
        text.write(config.runtime_config)
    become_plain()
    os.execve(config.runtime[0], config.runtime, {**os.environ, **config.runtime_environment})


# --- in the running container ----------------------------------------------------------------------------------------


def prepare(target: Target, directories: dict[str, int | None]) -> dict[str, Any]:
    """Close what the runtime left open, make directories, and look for a shell.

    Returns:
        The ``error``, if there is one.
    """
    try:
        _enter(target)
        os.setns(os.pidfd_open(target.init), os.CLONE_NEWNS)
        os.unlink(FIRST)  # noqa: PTH108  # as above
        _cover()
        files.make_directories(directories)
        files.require_shell()
    except (ProcessLookupError, FileNotFoundError, OSError) as exc:
        return {"error": str(exc)}
    return {}


def _cover() -> None:
    """Cover what is the whole machine's, and bound what is taken from the machine's numbers."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    covers = [(f"/proc/{name}", f"/proc/{name}") for name in (*READ_ONLY_PROC, *OF_INIT)]
    covers += [("/dev/null", f"/proc/{name}") for name in HIDDEN_PROC]
    for source, target in covers:
        if os.path.exists(target):  # noqa: PTH110  # as above
            bind_read_only(source, target, flags)
    mount("tmpfs", "/sys", "tmpfs", flags, "mode=0555,size=4k,nr_inodes=4")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_NODEV)  # setuid programs of the image work
    mount("none", "/sys", None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    mount(
        "devpts", "/dev/pts", None, MS_REMOUNT | MS_NOSUID | MS_NOEXEC, f"max={MAX_TERMINALS},ptmxmode=0666,mode=0620"
    )


def clean_up(target: Target, work: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Do one of the works of :mod:`grading.cleanup` in a child that has entered the container.

    Returns:
        What the work found; an ``error`` where it failed.
    """
    try:
        _enter(target)
        os.setns(os.pidfd_open(target.init), target.namespaces)
        handle = os.open(f"/proc/{target.init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except (ProcessLookupError, FileNotFoundError):
        return {"error": "the sandbox is gone"}
    ids = Ids(is_shifted=False)

    def enter() -> None:
        os.setns(handle, os.CLONE_NEWNS)
        ids.become_untouchable()

    pid, read = fork_entered(enter, lambda: cleanup.do(work, arguments, ids))
    os.waitpid(pid, 0)
    return answer_of(read)


def _enter(target: Target) -> None:
    """Make sure that the container is the one meant, and enter its user namespace where the caller is not root.

    Raises:
        ProcessLookupError, FileNotFoundError: It is gone.
    """
    if start_time(target.init) != target.start_time:
        raise ProcessLookupError(errno.ESRCH, "the sandbox is gone")
    harden_self()
    become_plain()
    if target.is_ordinary:
        os.setns(os.pidfd_open(target.init), os.CLONE_NEWUSER)
        become_root()


def report(answer: dict[str, Any]) -> int:
    """Print an answer; return an exit status."""
    print(json.dumps(answer))  # noqa: T201  # a program's own output
    sys.stdout.flush()
    return 0
