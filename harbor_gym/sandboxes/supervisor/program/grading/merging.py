"""Copy all changes made in a view to the sandbox's own files, so that a task's set-up reaches the policy.

Both trees are walked by descriptors that follow no link, as the policy controls the target. The policy's entries in the
place of copied ones are removed first.

Source: the kernel's filesystems/overlayfs.rst, for the content of an upper directory.
"""

import contextlib
import os
import stat
from typing import Any

import files
from grading import removal
from namespaces import Layers, mount_image

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_IN_THE_VIEW = frozenset(("/tmp", "/tests", "/logs/verifier", files.RESOLVER))
_CHUNK_BYTES = 1 << 30


def is_used(namespace: int) -> bool:
    """Return whether a process of the sandbox is in a mount namespace. To be called where /proc is the sandbox's."""
    wanted = os.stat(namespace).st_ino
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib would cost 20 ms of imports at every start
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}/ns/mnt").st_ino == wanted:  # noqa: PTH116  # as above
                    return True
    return False


def merge(layers: Layers, place: str, bound: list[str], asked: list[str], *, keeps: bool) -> dict[str, Any]:
    """Copy a view's upper directory to ``root``. In a child of the process that mounted both, in the same directory.

    Args:
        layers: The image's layers.
        place: The view's directory.
        bound: Paths that are the sandbox's own in the view.
        asked: Those, and requested paths that did not exist.
        keeps: Leave the view's files; otherwise each is removed after its copy, so that they never take room twice.

    Returns:
        The ``problem``, if there is one. The sandbox's files are then incomplete.
    """
    os.umask(0)
    attribute = "user.overlay.opaque" if layers.is_rootless else "trusted.overlay.opaque"
    walk = _Merge(bound, asked, attribute, keeps=keeps)
    try:
        os.unshare(os.CLONE_NEWNS)  # the image's mount ends with this process
        mount_image(layers, place)
        places = [os.open(path, _DIRECTORY) for path in (f"{place}/upper", "root", f"{place}/image")]
        walk.directory(places[0], places[1], places[2], "")
    except OSError as exc:
        return {"problem": f"{walk.at}: {exc.strerror or exc}"}
    except RecursionError:
        return {"problem": f"{walk.at[:100]}…: too deep"}
    return {"problem": ""}


class _Merge:
    def __init__(self, bound: list[str], asked: list[str], opaque: str, *, keeps: bool) -> None:
        self._skipped = _LEFT_IN_THE_VIEW.union(bound)
        self._way = _above(bound)
        """Directories above bound paths, which the maker of the view may have made."""
        self._removed = _above(asked).union(asked)
        """Paths that the maker of the view may have removed."""
        self._opaque = opaque
        self._keeps = keeps
        self.at = "/"
        """The path that is being copied."""

    def directory(self, source: int, target: int, image: int | None, path: str) -> None:
        """Copy a directory's entries.

        Args:
            source: A descriptor of it in the upper directory; closed.
            target: A descriptor of the sandbox's own directory; closed.
            image: A descriptor of the image's; None if it has none. Closed.
            path: Its path.
        """
        try:
            for name in os.listdir(source):
                if f"{path}/{name}" not in self._skipped:
                    self._entry(name, source, target, image, f"{path}/{name}")
        finally:
            for handle in (source, target, image):
                if handle is not None:
                    os.close(handle)

    def _entry(self, name: str, source: int, target: int, image: int | None, path: str) -> None:
        self.at = path
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            self._subdirectory(name, source, target, image, path)
            return
        if stat.S_ISCHR(status.st_mode):
            if status.st_rdev == 0 and path not in self._removed:
                _remove(name, target)
            return
        if stat.S_ISSOCK(status.st_mode):
            return  # a copy would lead nowhere
        _remove(name, target)
        if stat.S_ISREG(status.st_mode):
            _copy_file(name, source, target)
            if not self._keeps:
                os.unlink(name, dir_fd=source)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        else:
            os.mkfifo(name, dir_fd=target)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target, follow_symlinks=False)

    def _subdirectory(self, name: str, source: int, target: int, image: int | None, path: str) -> None:
        source = os.open(name, _DIRECTORY, dir_fd=source)
        before = _status(name, image)
        is_way = path in self._way
        has_directory = before is not None and stat.S_ISDIR(before.st_mode)
        if before is not None and not is_way and (not has_directory or self._is_opaque(source)):
            _remove(name, target)
        found = _status(name, target)
        is_new = found is None or not stat.S_ISDIR(found.st_mode)
        if is_new:
            _remove(name, target)
            os.mkdir(name, 0o700, dir_fd=target)
        target = os.open(name, _DIRECTORY, dir_fd=target)
        below = os.open(name, _DIRECTORY, dir_fd=image) if has_directory else None
        status = os.fstat(source)
        if is_new or not (is_way or (before is not None and _rights(before) == _rights(status))):
            os.fchown(target, status.st_uid, status.st_gid)
            os.fchmod(target, stat.S_IMODE(status.st_mode))
        self.directory(source, target, below, path)

    def _is_opaque(self, directory: int) -> bool:
        try:
            return os.getxattr(directory, self._opaque) == b"y"
        except OSError:
            return False


def _above(paths: list[str]) -> set[str]:
    return {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/" and end}


def _status(name: str, place: int | None) -> os.stat_result | None:
    if place is None:
        return None
    try:
        return os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _rights(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def _remove(name: str, place: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        removal.remove_entry(name, place)


def _copy_file(name: str, source_place: int, target_place: int) -> None:
    source = os.open(name, _READ, dir_fd=source_place)
    try:
        target = os.open(name, _WRITE, 0o600, dir_fd=target_place)
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{name} is no file any more")
            _copy_content(source, target, status.st_size)
            os.fchown(target, status.st_uid, status.st_gid)
            os.fchmod(target, stat.S_IMODE(status.st_mode))
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_content(source: int, target: int, size: int) -> None:
    """Copy a file's data, without its holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            sent = os.sendfile(target, source, start, min(end - start, _CHUNK_BYTES))
            if not sent:
                break
            start += sent
    os.ftruncate(target, size)
