"""Launch a container runtime (Apptainer): make a user namespace, mount the image in it, and run the runtime there.

The runtime gets a PID namespace of its own around the container's, so that all its processes end with it. The namespace
ends with the caller, killed or not.

Source: user_namespaces(7), pid_namespaces(7), the kernel's filesystems/overlayfs.rst.
"""

import contextlib
import errno
import os
import resource
import signal
from typing import Any, NoReturn

import files
from child import become_plain, limits
from kernel import packet_filter, programs
from kernel.calls import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_PDEATHSIG,
    become_root,
    mount,
    prctl,
    write_file,
)
from kernel.ids import below_ranges
from messages import FIRST, NAMESPACES, ContainerConfig
from namespaces import mount_memory

IMAGE = "0"
"""The image's mount point, named like the only layer of a local sandbox."""

FAILED = 1
_XATTR_PROBE = "user.harbor_gym"


def launch(config: ContainerConfig) -> int:
    """Run the container until its end or the caller's; return the runtime's exit status.

    The first process reports "up" on standard output and ends with standard input. Earlier errors are on standard
    error.
    """
    _end_with(config.parent)
    child = _fork_in_namespaces(config)
    return _status_of(child)


def _end_with(parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(FAILED)


def _status_of(pid: int) -> int:
    """Wait for a child, and for all other children meanwhile; return its status."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _fork_in_namespaces(config: ContainerConfig) -> int:
    """Fork the process that makes the namespaces; for root it gets the caller's ids, an ordinary user's has them."""
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
    if not config.is_rootless and os.read(from_child, 1):
        for name in ("uid_map", "gid_map"):
            write_file(f"/proc/{pid}/{name}", below_ranges(f"/proc/self/{name}"))
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
    if not config.is_rootless:
        os.unshare(os.CLONE_NEWUSER)
        os.write(ready, b"u")
        if not os.read(mapped, 1):
            return FAILED
        os.setgroups([])
    become_root()
    network = 0 if config.has_network else os.CLONE_NEWNET
    os.unshare(os.CLONE_NEWNS | NAMESPACES & ~os.CLONE_NEWNET | network)
    # Only now: a change of ids or capabilities resets it.
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
    """Be the first process around the container: mount its files, run the runtime, collect orphaned processes."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (0, parent):  # 0: the parent is outside of this PID namespace
        return FAILED
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount_memory(config.place, config.storage_bytes, mode="0755")
    os.chdir(config.place)
    for name in (IMAGE, "upper", "work", "root", "home", "tmp"):
        os.mkdir(name, 0o755)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
    _run(config.mount_image)
    _mount_overlay(config)
    _write_files(config)
    pid = os.fork()
    if pid == 0:
        _guarded(lambda: _become_runtime(config))
    return _status_of(pid)


def _run(argv: tuple[str, ...]) -> None:
    """Run a program of the host to its end, with its output on standard error.

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
    """Mount a writable overlay on the image: the kernel's, or if that is not available, a FUSE program's.

    Raises:
        OSError: Neither is available.
    """
    options = f"lowerdir={IMAGE},upperdir=upper,workdir=work"
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
    """Write the files that a runtime would bind into the container, and the program of its first process.

    No link of the image is followed: it may lead anywhere.
    """
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"root/{name}", 0o755)  # noqa: PTH102  # as above
    write_etc("root/etc", config.etc)
    place = os.open("root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        first = programs.open_first()
        content = os.pread(first, os.fstat(first).st_size, 0)
        files.write_file(place, FIRST.lstrip("/"), content, mode=programs.MODE)
        os.close(first)
    finally:
        os.close(place)


def write_etc(path: str, contents: dict[str, str]) -> None:
    """Write files of a container's /etc, replacing entries with their names.

    Raises:
        OSError: The image's /etc is no directory.
    """
    place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, content in contents.items():
            files.write_file(place, name, content.encode())
    finally:
        os.close(place)


def _become_runtime(config: ContainerConfig) -> NoReturn:
    with open("runtime.conf", "w", encoding="utf-8") as text:  # noqa: PTH123  # as above
        text.write(config.runtime_config)
    become_plain()
    for kind, soft, hard in limits():
        resource.setrlimit(kind, (soft, hard))
    os.execve(config.runtime[0], config.runtime, {**os.environ, **config.runtime_environment})
