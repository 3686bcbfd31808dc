"""Files and directories that are complete for every reader, or absent."""

import contextlib
import errno
import fcntl
import os
import ssl
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from harbor_gym._runtime.errors import UsageError

StrPath = str | os.PathLike[str]
"""A path, as public functions take it."""

_REASONS = {
    errno.ENOENT: "it is not there",
    errno.ENOTDIR: "a part of its path is a file",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "its permissions forbid it",
}


def why_unreadable(error: Exception) -> str:
    """Return in words for people why a file can't be read in its format, without the file's name.

    Args:
        error: The exception that opening, decoding or parsing it raised.
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    if isinstance(error, ssl.SSLError):
        return "it holds no certificate or no key"
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0) or error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error)


@contextlib.contextmanager
def naming(path: Path, *others: Path) -> Generator[None]:
    """Add ``path`` to errors of the block that name no file, such as those of a write to a full disk.

    Args:
        path: The path that the user knows.
        others: Internal paths that ``path`` replaces in such errors, too.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno is not None and exc.filename in (None, *map(str, others)):
            exc.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a path beside ``path`` to write to; at the end of the block the written file replaces ``path``.

    A reader of ``path`` meanwhile reads the earlier file, which stays if the block raises.

    Args:
        path: The file; its folder exists.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        with naming(path, partial):
            yield partial
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a read-only folder raises even if the file is missing
            partial.unlink(missing_ok=True)


def named_file(path: Path) -> Path:
    """Return the file that people name for a result: what a link leads to. It need not be there.

    A file in a run's folder that nobody named is replaced by its own name: a sandbox may have made a link of it.

    Raises:
        UsageError: A folder, a pipe or a device has this name. :func:`replacing` would put a file in place of a device.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder, a pipe or a device: name a file to write")
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def publishing_once(directory: Path) -> Generator[Path]:
    """Yield a path on the same file system at which the block makes a directory; at its end that becomes ``directory``.

    A ``directory`` that another process has published meanwhile stays, and the block's is removed, as it is if the
    block raises.

    Args:
        directory: The directory; its parents are made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=directory.parent, ignore_cleanup_errors=True) as folder:
        building = Path(folder) / directory.name
        yield building
        try:
            building.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content by ``text`` as UTF-8, atomically. Lone surrogates are written as ``\\udcff``."""
    with replacing(path) as partial:
        # A sandbox may share this folder: never write to a file or link that it made under this name.
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


@contextlib.contextmanager
def one_run_at_a_time(folder: Path, *, flag: str) -> Generator[None]:
    """Lock a run's folder during the block, if it exists. The kernel releases the lock of a killed process.

    Args:
        folder: The folder.
        flag: The flag that names it, for the error.

    Raises:
        UsageError: Another run uses the folder.
    """
    if not folder.is_dir():
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"a run is under way in {folder}: wait for its end, or name another folder ({flag})"
            ) from None
        except OSError:
            pass  # some network file systems can't lock directories
        yield
    finally:
        os.close(handle)


def open_regular(path: Path, below: Path) -> BinaryIO:
    """Open a regular file for reading, following no link on the path from a folder to it.

    A sandbox may have made the entries of a run's or trial's folder: links to this machine's files, or pipes, on which
    a reader would block.

    Args:
        path: The file.
        below: A folder above it, whose own path may have links.

    Raises:
        OSError: It can't be read, is no regular file, or can't be reached without links.
    """
    *folders, name = path.relative_to(below).parts
    if ".." in folders:
        raise OSError(errno.EINVAL, "it leads out of its folder", str(path))
    place = os.open(below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        handle = os.open(name, flags, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")
