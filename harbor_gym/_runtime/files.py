"""Files and directories that are complete for every reader, or absent."""

import contextlib
import errno
import os
import ssl
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from harbor_gym.errors import UsageError

_REASONS = {
    errno.ENOENT: "it is not there",
    errno.ENOTDIR: "a part of its path is a file",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "its permissions forbid it",
}


def why_unreadable(error: Exception) -> str:
    """Return why a file can't be read as what it has to be, in words for people, without the file's name.

    Args:
        error: What opening, decoding or parsing it raised.
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
    """Put ``path`` on errors of the block that name no file, as those of a disk that a write found full.

    Args:
        path: What people know.
        others: Files in whose place ``path`` is named, too.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno is not None and exc.filename in (None, *map(str, others)):
            exc.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Give a path beside ``path`` to write to; at the end of the block what was written there takes its place.

    A reader of ``path`` meanwhile reads the earlier file. Where the block raises, that one stays.

    Args:
        path: The file; its folder is there.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        with naming(path, partial):
            yield partial
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a folder that can't be written to refuses before it looks for the file
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
    """Give a path on the same file system, where the block makes a directory; at its end that becomes ``directory``.

    A ``directory`` that another process has published meanwhile stays, and the block's is removed, as it is where the
    block raises.

    Args:
        directory: Any; its parents are made.
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
    """Write ``text`` as UTF-8 in place of a file's content, at once. What UTF-8 lacks is written as ``\\udcff``."""
    with replacing(path) as partial:
        # Whatever a sandbox, whose log folders these may be, has put there under this name is not written to.
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


def open_regular(path: Path, below: Path) -> BinaryIO:
    """Open a regular file for reading, following no link on the way from a folder to it.

    A sandbox may have made what lies in the folders of runs and trials: links to this machine's files, and pipes, which
    a reader would wait for.

    Args:
        path: The file.
        below: A folder that it lies in, whose own path may have links.

    Raises:
        OSError: It can't be read, is no regular file, or is not reached without links.
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
