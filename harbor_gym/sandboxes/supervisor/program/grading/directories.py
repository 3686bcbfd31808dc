"""Harbor's requests about a sandbox's directories, done by descriptors: no program of the sandbox runs.

Harbor itself runs ``test``, ``mkdir``, ``rm``, ``find`` and ``chmod``, also between the policy's end and the verifier.

**Links.** A look follows each link, with the rights of the requesting user, like ``test``. When a directory is made,
emptied or made writable for all, only root's links (``/bin``, ``/var/run``) are followed, so that an ordinary user
can't lead root elsewhere. A link is followed by its text and never by the kernel, so that one of /proc leads to no
other process's files. Harbor's ``mkdir`` and ``chmod`` follow every link.
"""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

import accounts
from grading import removal
from kernel.calls import use_files_as
from kernel.ids import Ids

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 0o777
_ROOT = ("root", "0")
_MAX_LINKS = 40
"""As many as the kernel follows."""


def path_kind(path: str, user: str, ids: Ids) -> dict[str, Any]:
    """Return whether a path ``is_dir`` or ``is_file`` for a user, like ``test -d`` and ``test -f``.

    Raises:
        RequestError: There is no such user in the sandbox.
    """
    _be(user, ids)
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  # pathlib would cost 20 ms of imports at every start
    except OSError:
        return {"is_dir": False, "is_file": False}
    return {"is_dir": stat.S_ISDIR(mode), "is_file": stat.S_ISREG(mode)}


def ensure(directories: list[str], user: str, ids: Ids, *, opens: bool) -> dict[str, Any]:
    """Make missing directories, with their parents, as a user; with ``opens``, make them writable for all.

    Returns:
        The ``problem``, if there is one.

    Raises:
        RequestError: There is no such user in the sandbox.
    """
    walk = _Walk(_be(user, ids))
    return _all(_ensure(walk, path, opens=opens) for path in directories)


def empty(directories: list[str], ids: Ids, *, opens: bool) -> dict[str, Any]:
    """Make or empty directories, as root, replacing other entries; with ``opens``, make them writable for all.

    An existing one keeps its owner, and without ``opens`` its mode.

    Returns:
        The ``problem``, if there is one.
    """
    walk = _Walk(_be("0", ids))
    return _all(_empty(walk, path, opens=opens) for path in directories)


def reset(remove: list[str], create: list[str], open_to_all: list[str], ids: Ids) -> dict[str, Any]:
    """Remove entries, make directories, and make some writable for all, as root; stop at the first failing list.

    Returns:
        The ``problem``, if there is one.
    """
    walk = _Walk(_be("0", ids))
    for problems in (
        (_removed(walk, path) for path in remove),
        (_ensure(walk, path, opens=False) for path in create),
        (_ensure(walk, path, opens=True, makes=False) for path in open_to_all),
    ):
        if (answer := _all(problems))["problem"]:
            return answer
    return {"problem": ""}


def _be(user: str, ids: Ids) -> int | None:
    """Use files as a user of the sandbox; return the owner of the links to follow, None for any owner."""
    uid, gid, groups, _ = (0, 0, [0], "") if user in _ROOT else accounts.identity(user, accounts.read())
    outside = [ids.outside(number) for number in (uid, gid, *groups)]
    use_files_as(outside[0], outside[1], outside[2:], is_root=uid == 0)
    return outside[0] if uid == 0 else None


def _all(problems: Iterator[str]) -> dict[str, Any]:
    return {"problem": "; ".join(filter(None, list(problems)))}


def _ensure(walk: "_Walk", path: str, *, opens: bool, makes: bool = True) -> str:
    try:
        place = walk.to(path, makes=makes)
        try:
            if opens:
                _open_to_all(place)
        finally:
            os.close(place)
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    return ""


def _empty(walk: "_Walk", path: str, *, opens: bool) -> str:
    try:
        parent, name = walk.to_parent(path, makes=True)
        try:
            place = _directory_at(parent, name)
        finally:
            os.close(parent)
        try:
            removal.empty(os.dup(place))
            if left := os.listdir(place):  # noqa: PTH208  # as above
                return f"{path}/{left[0]}: can't be removed"
            if opens:
                os.fchmod(place, _OPEN)
        finally:
            os.close(place)
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    return ""


def _removed(walk: "_Walk", path: str) -> str:
    try:
        parent, name = walk.to_parent(path, makes=False)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    try:
        removal.remove_entry(name, parent)
    except FileNotFoundError:
        return ""
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    finally:
        os.close(parent)
    return ""


def _directory_at(parent: int, name: str) -> int:
    """Return a descriptor of a directory, made if it is missing or a file or link."""
    kind = removal.kind_of(parent, name)
    if kind not in (0, stat.S_IFDIR):
        os.unlink(name, dir_fd=parent)
        kind = 0
    if not kind:
        os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _open_to_all(place: int) -> None:
    handle = os.open(".", _DIRECTORY, dir_fd=place)
    try:
        os.fchmod(handle, _OPEN)
    finally:
        os.close(handle)


class _Walk:
    """Goes to directories by descriptors.

    Args:
        trusted: The owner of the links that are followed; None: any owner.
    """

    def __init__(self, trusted: int | None) -> None:
        self._trusted = trusted

    def to(self, path: str, *, makes: bool) -> int:
        """Return a descriptor of a directory, only for further walks.

        Raises:
            OSError: The path leads to another entry, or over a link that is not followed; or it is missing, and
                ``makes`` is false.
        """
        place, waiting, links = os.open("/", _PASSED), _names(path)[::-1], 0
        try:
            while waiting:
                name = waiting.pop()
                status = _status(place, name, makes=makes)
                if not stat.S_ISLNK(status.st_mode):
                    place = _exchanged(place, os.open(name, _PASSED, dir_fd=place))
                    continue
                links += 1
                if links > _MAX_LINKS or self._trusted not in (None, status.st_uid):
                    raise OSError(errno.ELOOP, f"the link {name} in the path is only followed for its owner")
                target = os.readlink(name, dir_fd=place)
                waiting += _names(target)[::-1]
                if target.startswith("/"):
                    place = _exchanged(place, os.open("/", _PASSED))
        except BaseException:
            os.close(place)
            raise
        return place

    def to_parent(self, path: str, *, makes: bool) -> tuple[int, str]:
        """Return a descriptor of the directory in which a path's last name is, and that name.

        Raises:
            OSError: As for :meth:`to`, or the path is the root directory.
        """
        *above, name = _names(path) or [""]
        if name in ("", ".."):
            raise OSError(errno.EINVAL, "it has no name of its own")
        return self.to("/".join(above), makes=makes), name


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _status(place: int, name: str, *, makes: bool) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        if not makes:
            raise
        os.mkdir(name, 0o755, dir_fd=place)
        return os.stat(name, dir_fd=place, follow_symlinks=False)


def _exchanged(place: int, other: int) -> int:
    os.close(place)
    return other
