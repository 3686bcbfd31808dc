"""Remove the policy's files from the verifier's directories, and make these again. No link's target is removed.

Paths are walked in the sandbox's mount namespace by a process without descriptors of the host, so that no link leads
out of it.
"""

import contextlib
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CLOSED, _OPEN = 0o755, 0o777


def remove(path: str) -> None:
    """Remove the entry at a path, with all below it, as far as possible."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.unlink(path)  # noqa: PTH108  # pathlib would cost 20 ms of imports at every start
        except IsADirectoryError:
            with contextlib.suppress(OSError):
                empty(os.open(path, _DIRECTORY))
                os.rmdir(path)  # noqa: PTH106  # as above


def remove_entry(name: str, place: int) -> None:
    """Remove an entry of a directory, with all below it."""
    try:
        os.unlink(name, dir_fd=place)
    except IsADirectoryError:
        empty(os.open(name, _DIRECTORY, dir_fd=place))
        os.rmdir(name, dir_fd=place)


def remove_unless_directory(path: str) -> None:
    """Remove a link or a file in place of a directory."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.unlink(path)  # noqa: PTH108  # as above


def empty_as_roots(path: str, root: int) -> str:
    """Empty a directory, made if missing, and give it to root, not writable for others.

    Args:
        path: The directory.
        root: The id of the sandbox's root in this process's user namespace.

    Returns:
        The problem; empty if there is none.
    """
    try:
        _make(path, root)
        handle = os.open(path, _DIRECTORY)
    except OSError as exc:
        return f"{path} could not be made: {exc.strerror}"
    try:
        os.fchmod(handle, _CLOSED)
        os.fchown(handle, root, root)
        empty(os.dup(handle))
        left = os.listdir(handle)  # noqa: PTH208  # as above
    except OSError as exc:
        return f"{path} could not be emptied: {exc.strerror}"
    finally:
        os.close(handle)
    return f"{path}/{left[0]} could not be removed" if left else ""


def state_of(path: str) -> list[int] | None:
    """Return a directory's owner, group and mode; None if there is no directory."""
    with contextlib.suppress(OSError):
        status = os.stat(path)  # noqa: PTH116  # as above
        if stat.S_ISDIR(status.st_mode):
            return [status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)]
    return None


def make_again(path: str, state: list[int], root: int) -> str:
    """Make a missing directory again as it was, replacing another entry with its name.

    Args:
        path: The directory.
        state: The result of :func:`state_of`.
        root: As for :func:`empty_as_roots`.

    Returns:
        The problem; empty if there is none.
    """
    uid, gid, mode = state
    try:
        if not os.path.isdir(path):  # noqa: PTH112  # as above
            _make(path, root)
            handle = os.open(path, _DIRECTORY)
            try:
                os.fchown(handle, uid, gid)
                os.fchmod(handle, mode)
            finally:
                os.close(handle)
    except OSError as exc:
        return f"{path} could not be made: {exc.strerror}"
    return ""


def _make(path: str, root: int) -> None:
    """Make a directory and those above it; a link to a directory counts as one."""
    if path in ("", "/") or os.path.isdir(path):  # noqa: PTH112  # as above
        return
    _make(os.path.dirname(path), root)  # noqa: PTH120  # as above
    remove_unless_directory(path)
    os.mkdir(path, _CLOSED)  # noqa: PTH102  # as above
    os.chown(path, root, root, follow_symlinks=False)


def is_empty_directory(path: str) -> bool:
    """Return whether a directory has no entries."""
    try:
        handle = os.open(path, _DIRECTORY)
        try:
            with os.scandir(handle) as entries:
                return next(entries, None) is None
        finally:
            os.close(handle)
    except OSError:
        return False


def hand_over(path: str, uid: int | None) -> None:
    """Give a directory to a user, or make it writable for all."""
    with contextlib.suppress(OSError):
        handle = os.open(path, _DIRECTORY)
        try:
            if uid is None:
                os.fchmod(handle, _OPEN)
            else:
                os.fchown(handle, uid, -1)
        finally:
            os.close(handle)


def empty(place: int) -> None:
    """Remove all entries of a directory, to any depth, as far as possible; close its descriptor.

    It keeps one descriptor open: it goes up by "..", and stops if that has become another directory.
    """
    above: list[tuple[str, tuple[int, int]]] = []
    passed: set[tuple[int, int]] = set()
    try:
        while True:
            deeper = _remove_entries(place, passed)
            if deeper is not None:
                above.append((deeper, _identity(place)))
                place = exchanged(place, deeper)
            elif above:
                name, parent = above.pop()
                passed.add(_identity(place))
                place = exchanged(place, "..")
                if _identity(place) != parent:
                    return
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=place)
            else:
                return
    finally:
        os.close(place)


def _remove_entries(place: int, passed: set[tuple[int, int]]) -> str | None:
    """Remove the entries that can be removed at once; return a directory that must be emptied first."""
    for name in os.listdir(place):
        try:
            os.unlink(name, dir_fd=place)
        except IsADirectoryError:
            if not _removed_directory(name, place):
                status = os.stat(name, dir_fd=place, follow_symlinks=False)
                if (status.st_dev, status.st_ino) not in passed:
                    return name
        except OSError:  # the caller checks for remaining entries
            continue
    return None


def _removed_directory(name: str, place: int) -> bool:
    try:
        os.rmdir(name, dir_fd=place)
    except OSError:
        return False
    return True


def kind_of(place: int, name: str) -> int:
    """Return the file type bits of a directory's entry, without following links; 0 if there is none."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0


def exchanged(place: int, name: str, flags: int = _DIRECTORY) -> int:
    """Open an entry of a directory, and close the directory."""
    other = os.open(name, flags, dir_fd=place)
    os.close(place)
    return other


def _identity(place: int) -> tuple[int, int]:
    status = os.fstat(place)
    return status.st_dev, status.st_ino
