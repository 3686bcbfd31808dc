"""The views of a sandbox: mount namespaces of their own, for a verifier or for a later step's set-up.

A pristine view has a fresh overlay on the image's layers; files of the policy are only in paths bound from its root.
``merging.py`` copies the changes of a set-up to the sandbox's own files. A shared view has the sandbox's own files, and
a few directories that nobody else sees. Processes and network are the sandbox's in both.
"""

import array
import contextlib
import errno
import os
import select
import signal
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import files
import namespaces
from grading import merging, removal
from kernel.calls import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MS_REMOUNT,
    attach,
    become_root,
    mount,
    mount_by,
    open_tree,
    pivot_root,
    unmount,
)
from kernel.ids import Ids
from kernel.steps import Steps

_DIRECTORY = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_TIMEOUT_SEC = 10.0
"""Limit for mounting the view: the policy may stop its process, by a service that the task keeps running."""
_UP, _REPORT_BYTES = b"up", 2000
_OWN_NAMESPACE = "/proc/self/ns/mnt"
_MAX_PATHS, _MAX_PATHS_BYTES = 5000, 40_000
_PIN_TRIES = 50
"""For one directory, which a process of the policy may move away meanwhile."""


class ViewError(Exception):
    """The view can't be made; the message states why."""


class FilesOfView(NamedTuple):
    """The files of a view, apart from the carried paths."""

    layers: namespaces.Layers
    directories: dict[str, int | None]
    """Directories to make → mode; None keeps the mode of an existing one."""

    processors: Sequence[int]
    """Those that it names; empty for the machine's."""


class View:
    """One view; :attr:`namespace` is a descriptor of its mount namespace.

    Args:
        own: The view's files at its start.
        ids: The mapping of the sandbox's user ids.
        number: Its number among the sandbox's views.
        cgroup_mounts: Directories of the control groups, and their mount points inside.
    """

    def __init__(self, own: FilesOfView, ids: Ids, number: int, cgroup_mounts: list[tuple[str, str]]) -> None:
        self._files, self._ids, self._cgroup_mounts = own, ids, cgroup_mounts
        self._place = f"view-{number}"
        self.namespace = -1
        self.bound: list[str] = []
        """The paths that are the sandbox's own in the view."""

    def open(
        self,
        paths: list[str],
        user_namespace: int,
        *,
        etc: Mapping[str, str],
        also: Sequence[str] = (),
        mounts: Mapping[str, int],
    ) -> None:
        """Make the view. In the supervisor's own mount namespace, with the sandbox's place as working directory.

        Args:
            paths: The carried paths: absolute ones of directories or files, as the policy left them. A path that is
                missing, or to which only a link leads, is missing in the view, too.
            user_namespace: A pidfd of a process of the sandbox; -1 if this process is in its user namespace.
            etc: Files of /etc that the image lacks → content.
            also: Further carried paths; the image's entry stays if one is missing or only a link leads to it.
            mounts: What is at further paths instead: path → a mount without a name.

        Raises:
            ViewError: The kernel refuses.
        """
        try:
            os.mkdir(self._place, 0o755)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
            namespaces.make_overlay_places(self._place, self._ids)
            namespaces.mount_overlay(self._files.layers, self._place, is_plain=True)
            for path in (*paths, *also):
                if path not in mounts:
                    self._carry(path, or_image=path in also)
            for path, tree in mounts.items():
                self._put(tree, [name for name in path.split("/") if name])
            self._enclose(user_namespace, lambda: self._pristine(etc))
        except OSError as exc:
            raise ViewError(str(exc)) from exc

    def share(self, directories: list[str], namespace: int, user_namespace: int) -> None:
        """Make a view of the sandbox's own files in which some directories are empty ones of the view's alone.

        In the sandbox these directories are made if they are missing, and until :func:`unpin` neither they nor those
        above them can be moved or removed: the view's would go with them.

        Args:
            directories: Absolute paths.
            namespace: A descriptor of the sandbox's mount namespace, or a pidfd of a process in it.
            user_namespace: As for :meth:`open`.

        Raises:
            ViewError: The kernel refuses, or a directory's path leads over a link.
        """
        trees: list[int] = []
        try:
            os.mkdir(self._place, 0o755)  # noqa: PTH102  # as above
            owner = self._ids.outside(0)
            for number in range(len(directories)):
                here = f"{self._place}/{number}"
                os.mkdir(here, 0o755)  # noqa: PTH102  # as above
                os.chown(here, owner, owner)
                trees.append(open_tree(here))
            self._enclose(user_namespace, lambda: _beside(namespace, dict(zip(directories, trees, strict=True))))
        except OSError as exc:
            raise ViewError(str(exc)) from exc
        finally:
            for tree in trees:
                os.close(tree)

    def merge(self, asked: list[str], *, keeps: bool) -> dict[str, Any]:
        """Copy the changes made in the view to the sandbox's own files; see :func:`merging.merge`."""
        return merging.merge(self._files.layers, self._place, self.bound, asked, keeps=keeps)

    def close(self, *, keeps: bool = False) -> None:
        """Drop the view and its files. Idempotent.

        Args:
            keeps: Keep the files for the processes that run in the view.
        """
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1
        with contextlib.suppress(OSError):
            unmount(f"{self._place}/root")
        if not keeps:
            removal.remove(self._place)

    def _carry(self, path: str, *, or_image: bool) -> None:
        names = [name for name in path.split("/") if name]
        root = os.open(f"{self._place}/root", _DIRECTORY)
        source = reached(os.open("root", _DIRECTORY), names)
        try:
            if source is None:
                if not or_image:
                    removal.remove(f"{self._place}/root{_plain_parent(root, names)}")
                return
            is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
            if not is_directory and self._is_to_be_directory(path):
                return  # a file in place of the workdir or a log directory: the image's stays
            target = self._made(os.dup(root), names, is_directory=is_directory)
            try:
                here = f"/proc/self/fd/{target}"
                mount(f"/proc/self/fd/{source}", here, None, MS_BIND | MS_REC)
            finally:
                os.close(target)
            bound = "/".join([self._place, "root", *names])
            mount("none", bound, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)
            self.bound.append("/" + "/".join(names))
        finally:
            os.close(root)
            if source is not None:
                os.close(source)

    def _put(self, tree: int, names: list[str]) -> None:
        """Mount a tree, which is nosuid and nodev by itself."""
        root = os.open(f"{self._place}/root", _DIRECTORY)
        os.close(self._made(root, names, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode)))
        attach(tree, "/".join([self._place, "root", *names]))
        self.bound.append("/" + "/".join(names))

    def _is_to_be_directory(self, path: str) -> bool:
        """Return whether a path is a directory that the sandbox must have, or above one."""
        return any(f"{needed}/".startswith(f"{path.rstrip('/')}/") for needed in self._files.directories)

    def _made(self, place: int, names: list[str], *, is_directory: bool) -> int:
        """Return a descriptor of a mount point, made if the image has none of its kind."""
        owner = self._ids.outside(0)
        for depth, name in enumerate(names):
            wants_directory = is_directory or depth < len(names) - 1
            kind = removal.kind_of(place, name)
            if kind and (kind == stat.S_IFDIR) != wants_directory:
                removal.remove_entry(name, place)
                kind = 0
            if not kind and wants_directory:
                os.mkdir(name, 0o755, dir_fd=place)
                os.chown(name, owner, owner, dir_fd=place, follow_symlinks=False)
            elif not kind:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place))
            place = removal.exchanged(place, name, _ANYTHING)
        return place

    def _enclose(self, user_namespace: int, work: Callable[[], int]) -> None:
        """Make the mount namespace in a process that acts as the sandbox's root, and receive its descriptor."""
        up, ready = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            up.close()
            _make_namespace(user_namespace, work, ready)
        ready.close()
        with up:
            answered, _, _ = select.select([up], [], [], _TIMEOUT_SEC)
            output, handles = _received(up) if answered else (b"it took too long", [])
            if output != _UP or not handles:
                os.kill(pid, signal.SIGKILL)
                raise ViewError(output.decode("utf-8", "replace") or "its process ended without a reason")
            (self.namespace,) = handles

    def _pristine(self, etc: Mapping[str, str]) -> int:
        """Let this process have the view as its mount namespace; return a descriptor of that."""
        os.unshare(os.CLONE_NEWNS)
        own = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        root = f"{self._place}/root"
        steps = Steps()
        mount_by(steps, root, root, None, MS_BIND | MS_REC)
        namespaces.dress(steps, root, self._cgroup_mounts, self._files.processors)
        pivot_root(steps, root)
        steps.perform()
        files.remake_directories(self._files.directories)
        # One may be a carried file, which is the sandbox's own then.
        with contextlib.suppress(OSError):
            files.write_etc(etc)
        return own


def _make_namespace(user_namespace: int, work: Callable[[], int], ready: socket.socket) -> NoReturn:
    try:
        if user_namespace >= 0:
            os.setns(user_namespace, os.CLONE_NEWUSER)
            become_root()
        socket.send_fds(ready, [_UP], [work()])
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            ready.send(str(exc).encode("utf-8", "replace")[:_REPORT_BYTES])
    finally:
        os._exit(0)


def _beside(namespace: int, trees: dict[str, int]) -> int:
    """Let this process have the sandbox's files, with other directories in some places; see :meth:`View.share`."""
    os.setns(namespace, os.CLONE_NEWNS)
    os.umask(0o022)
    try:
        for path in _pinned(trees):
            _pin(path, is_given=path in trees)
    except OSError:
        unpin(trees)
        raise
    os.unshare(os.CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    for path, tree in trees.items():
        attach(tree, path)
    return os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)


def _pinned(directories: Iterable[str]) -> list[str]:
    """Return directories and all above them, each after the one that it is in."""
    paths: set[str] = set()
    for path in directories:
        while path != "/":
            paths.add(path)
            path = os.path.dirname(path)  # noqa: PTH120  # as above
    return sorted(paths)


def _pin(path: str, *, is_given: bool) -> None:
    """Mount a directory, made if it is missing, on itself: what is a mount point can't be moved or removed."""
    for _ in range(_PIN_TRIES):
        if is_given:
            removal.remove_unless_directory(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)  # noqa: PTH102  # as above
        with contextlib.suppress(FileNotFoundError):  # it was moved away
            place = os.open(path, _DIRECTORY)
            try:
                mount(f"/proc/self/fd/{place}", f"/proc/self/fd/{place}", None, MS_BIND)
            finally:
                os.close(place)
            if _is_mount_point(path):
                return
    raise OSError(errno.EBUSY, f"{path} does not stay in its place")


def _is_mount_point(path: str) -> bool:
    """Return whether a directory is a mount point; an empty one that is none is removed."""
    try:
        os.rmdir(path)  # noqa: PTH106  # as above
    except OSError as exc:
        return exc.errno == errno.EBUSY
    return False


def unpin(directories: Iterable[str]) -> None:
    """Undo :meth:`View.share` in the sandbox, in its mount namespace."""
    for path in reversed(_pinned(directories)):
        with contextlib.suppress(OSError):
            unmount(path)


def _received(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message with at most one descriptor, which no later command inherits."""
    handles = array.array("i")
    space = socket.CMSG_LEN(handles.itemsize)
    message, ancillary, _, _ = control.recvmsg(_REPORT_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    for _, _, data in ancillary:
        handles.frombytes(data)
    return message, list(handles)


def reached(place: int, names: list[str]) -> int | None:
    """Return a descriptor of the file or directory at a path, through no link; None without one. Closes ``place``."""
    for depth, name in enumerate(names):
        is_last = depth == len(names) - 1
        try:
            place = removal.exchanged(place, name, _ANYTHING if is_last else _DIRECTORY)
        except OSError:
            os.close(place)
            return None
    if stat.S_IFMT(os.fstat(place).st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
        os.close(place)
        return None
    return place


def _plain_parent(root: int, names: list[str]) -> str:
    """Return the part of a path to remove if the policy's root lacks it: down to the first link or the end."""
    place = os.dup(root)
    try:
        for depth, name in enumerate(names):
            if removal.kind_of(place, name) != stat.S_IFDIR:
                return "/" + "/".join(names[: depth + 1])
            place = removal.exchanged(place, name, _ANYTHING)
    finally:
        os.close(place)
    return "/" + "/".join(names)


def written_paths(own: Collection[str] = (files.RESOLVER,), upper: str = "upper") -> dict[str, Any]:
    """Return the paths that were written in the sandbox, deleted ones too. In the supervisor's mount namespace.

    Args:
        own: Files that the supervisor writes, which are left out.
        upper: The overlay's upper directory.

    Returns:
        ``paths``, and whether these ``are_all``. A new empty directory counts itself, any other its contents.
    """
    found: list[str] = []
    length = 0
    waiting: list[str] = [upper]
    while waiting and len(found) < _MAX_PATHS and length < _MAX_PATHS_BYTES:
        directory = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            is_empty = True
            for entry in entries:
                is_empty = False
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    found.append(entry.path.removeprefix(upper))
                    length += len(os.fsencode(found[-1])) + 4
            if is_empty and directory != upper:
                found.append(directory.removeprefix(upper))
                length += len(os.fsencode(found[-1])) + 4
    return {"paths": [path for path in found if path not in own], "are_all": not waiting}
