"""Work from outside on a running container of a foreign runtime (``container.py``). Runs no program of the image.

``prepare`` removes rights that the runtime left. ``clean_up`` does the parts of ``grading/cleanup.py``. ``resize``
changes the storage limit, and ``view`` makes the verifier's view of ``grading/view.py``, both in the mount namespace of
the process around the container's first one, which has mounted the container's files.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import accounts
import files
from child import become_plain
from children import answer_of, fork_entered
from container import write_etc
from grading import cleanup, merging
from grading.view import FilesOfView, View, unpin, written_paths
from kernel.calls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    PR_SET_PDEATHSIG,
    become_root,
    bind_read_only,
    harden_self,
    mount,
    prctl,
    write_files_as_root,
)
from kernel.ids import Ids
from kernel.procfs import start_time
from kernel.steps import Steps
from messages import FIRST, ContainerSite, Target
from namespaces import HIDDEN_PROC, MAX_TERMINALS, OF_INIT, READ_ONLY_PROC, Layers, close_reserve, open_reserve


def prepare(target: Target, directories: dict[str, int | None], users: list[str]) -> dict[str, Any]:
    """Remove rights that the runtime left, make directories, and look for a shell.

    Returns:
        The ``ids`` of these users; the ``error``, if there is one.
    """
    try:
        _enter(target)
        os.setns(os.pidfd_open(target.init), os.CLONE_NEWNS)
        os.unlink(FIRST)  # noqa: PTH108  # pathlib would cost 20 ms of imports at every start
        _cover()
        steps = Steps()
        files.make_directories_by(steps, *directories.items())
        files.require_shell_by(steps)
        steps.perform()
        known = accounts.read()
    except OSError as exc:
        return {"error": str(exc)}
    return {"ids": [number for user in users for number in accounts.ids_of(user, known)]}


def _cover() -> None:
    """Cover files that concern the whole machine, and limit the number of terminals."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    covers = [(f"/proc/{name}", f"/proc/{name}") for name in (*READ_ONLY_PROC, *OF_INIT)]
    covers += [("/dev/null", f"/proc/{name}") for name in HIDDEN_PROC]
    steps = Steps()
    for source, target in covers:
        bind_read_only(steps, source, target, flags, if_there=True)
    steps.perform()
    mount("tmpfs", "/sys", "tmpfs", flags, "mode=0555,size=4k,nr_inodes=4")
    mount("none", "/sys", None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_NODEV)  # setuid programs of the image work
    mount(
        "devpts", "/dev/pts", None, MS_REMOUNT | MS_NOSUID | MS_NOEXEC, f"max={MAX_TERMINALS},ptmxmode=0666,mode=0620"
    )


def clean_up(target: Target, work: str, arguments: dict[str, Any], view_namespace: int) -> dict[str, Any]:
    """Do one part of :mod:`grading.cleanup` in a child that has entered the container.

    Args:
        target: The container.
        work: The part's name.
        arguments: Its arguments.
        view_namespace: The mount namespace of the verifier's view, if the files are to be seen there; else -1.

    Returns:
        The part's results; an ``error`` if it failed.
    """
    try:
        _enter(target)
        handle = view_namespace
        if handle < 0:
            handle = os.open(f"/proc/{target.init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        os.setns(os.pidfd_open(target.init), target.namespaces)
    except (ProcessLookupError, FileNotFoundError):
        return {"error": "the sandbox is gone"}
    ids = Ids(is_shifted=False)

    def enter() -> None:
        os.setns(handle, os.CLONE_NEWNS)
        ids.become_untouchable()
        write_files_as_root()

    pid, read = fork_entered(enter, lambda: cleanup.do(work, arguments, ids))
    os.waitpid(pid, 0)
    return answer_of(read)


def _enter(target: Target) -> None:
    """Check that the container is the expected one, and enter its user namespace if the caller is not root.

    Raises:
        ProcessLookupError, FileNotFoundError: It is gone.
    """
    _check(target)
    if target.is_rootless:
        os.setns(os.pidfd_open(target.init), os.CLONE_NEWUSER)
        become_root()


def _check(target: Target) -> None:
    if start_time(target.init) != target.start_time:
        raise ProcessLookupError(errno.ESRCH, "the sandbox is gone")
    harden_self()
    become_plain()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- where the files are mounted -------------------------------------------------------------------------------------


def view(
    target: Target,
    site: ContainerSite,
    number: int,
    paths: list[str],
    also: list[str],
    apart: list[str],
    control: int,
) -> dict[str, Any]:
    """Make a view and send a descriptor of its mount namespace to a socket.

    Args:
        target: The container.
        site: Where its files are mounted.
        number: The view's own.
        paths: As for :meth:`View.open`.
        also: As for :meth:`View.open`.
        apart: As for :meth:`View.share`, which makes the view if there are any.
        control: A descriptor of the socket.

    Returns:
        Which paths are ``bound``; the ``error``, if there is one.
    """

    def work(init: int) -> dict[str, Any]:
        os.setns(init, target.namespaces)
        made = _view(site, number)
        try:
            if apart:
                made.share(apart, init, -1)
            else:
                made.open(paths, -1, has_network=False, also=also)
                os.setns(made.namespace, os.CLONE_NEWNS)
                write_etc("/etc", site.etc)
        except BaseException:
            made.close()
            raise
        with socket.socket(fileno=control) as caller:
            socket.send_fds(caller, [b"view"], [made.namespace])
        return {"bound": made.bound}

    return _at_the_files(target, site, work)


def merge(
    target: Target, site: ContainerSite, number: int, bound: list[str], asked: list[str], view_namespace: int
) -> dict[str, Any]:
    """Copy the changes made in a view to the container's own files.

    Args:
        target: The container.
        site: Where its files are mounted.
        number: The view's own.
        bound: The paths that :func:`view` returned.
        asked: All paths that it was given.
        view_namespace: The view's mount namespace.

    Returns:
        The ``problem``, if there is one, and whether the view ``is_used``.
    """

    def work(init: int) -> dict[str, Any]:
        here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        os.setns(init, os.CLONE_NEWNS)
        keeps = merging.is_used(view_namespace)
        os.setns(here, os.CLONE_NEWNS)
        os.chdir(site.place)
        write_files_as_root()
        made = _view(site, number)
        made.bound = bound
        return {"is_used": keeps, **made.merge(asked, keeps=keeps)}

    return _at_the_files(target, site, work)


def drop_view(target: Target, site: ContainerSite, number: int, keeps: bool, apart: list[str]) -> dict[str, Any]:
    """Remove a view, and its files unless ``keeps`` is set."""

    def work(init: int) -> dict[str, Any]:
        _view(site, number).close(keeps=keeps)
        if apart:
            os.setns(init, os.CLONE_NEWNS)
            unpin(apart)
        return {}

    return _at_the_files(target, site, work)


def resize(target: Target, site: ContainerSite, is_grading: bool) -> dict[str, Any]:
    """Free the room that is reserved for grading, or reserve it again.

    Returns:
        Whether it ``is_full``.
    """

    def work(_: int) -> dict[str, Any]:
        if is_grading:
            return {"is_full": open_reserve(site.storage_bytes)}
        close_reserve(site.storage_bytes)
        return {"is_full": False}

    return _at_the_files(target, site, work)


def written(target: Target, site: ContainerSite) -> dict[str, Any]:
    """Return the ``paths`` that differ from the image, without the files of ``site.etc``."""

    def work(_: int) -> dict[str, Any]:
        found = written_paths()
        own = {f"/etc/{name}" for name in site.etc}
        return {**found, "paths": [path for path in found["paths"] if path not in own]}

    return _at_the_files(target, site, work)


def _view(site: ContainerSite, number: int) -> View:
    own = FilesOfView(Layers(number=1, is_rootless=True), site.directories, name_server="")
    return View(own, Ids(is_shifted=False), number, [])


def _at_the_files(target: Target, site: ContainerSite, work: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Do work in a child that has entered the namespaces around the container, where its files are mounted.

    Args:
        target: The container.
        site: The mount point of its files.
        work: Takes a descriptor of the container's first process; its working directory is the site's place.
    """
    read, write = os.pipe()
    try:
        _check(target)
        init = os.pidfd_open(target.init)
        # All are opened before the first is entered: afterwards that process, not dumpable, can't be examined.
        user, mounts, processes = (_namespace(site.outer, name) for name in ("user", "mnt", "pid"))
        os.setns(user, os.CLONE_NEWUSER)
        become_root()
        os.setns(mounts, os.CLONE_NEWNS)
        os.setns(processes, os.CLONE_NEWPID)
        os.chdir(site.place)
    except OSError as exc:
        return {"error": str(exc)}
    pid = os.fork()
    if pid == 0:
        try:
            answer = work(init)
        except BaseException as exc:  # a forked child must never return into its parent's code
            answer = {"error": str(exc)}
        with contextlib.suppress(OSError):
            os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123  # a descriptor
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "its process was killed"}


def _namespace(pid: int, name: str) -> int:
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def report(answer: dict[str, Any]) -> int:
    """Print an answer; return an exit status."""
    print(json.dumps(answer))  # noqa: T201  # a program's own output
    sys.stdout.flush()
    return 0
