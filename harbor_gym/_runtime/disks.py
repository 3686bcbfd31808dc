"""Errors of a full or read-only disk in one line: the path, the reason, and the remedy."""

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path

from harbor_gym._runtime.cache import cache_path
from harbor_gym._runtime.errors import UsageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDIES = {
    **dict.fromkeys(_FULL, "free some space there"),
    errno.EROFS: "make it writable",
    errno.EACCES: "change its permissions",
    errno.EPERM: "change its permissions",
}
_NUMBER = re.compile(r"\[Errno (\d+)\]")
"""How ``shutil.Error`` quotes the errors of single files."""


def describe_disk_failure(error: BaseException, written: Path | None = None) -> str | None:
    """Return an error of a disk in one line for people; None for any other error.

    Args:
        error: The exception that a command raised.
        written: The path that was being written, where the error names no file.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, OSError):
        return None
    if str(error.strerror).startswith("No usable temporary directory"):  # Source: tempfile
        return "no folder for temporary files can be written to: set TMPDIR to one"
    number, place = _number_and_place(error)
    if number not in _REMEDIES:
        return None
    shown = place or (str(written) if written else "") or " and ".join(map(str, _full_places()))
    if not shown:
        return f"{os.strerror(number)} on a disk, or where standard output goes to: {_REMEDIES[number]}"
    return f"{shown}: {os.strerror(number)}: {_REMEDIES[number]}, or {_other_folder(shown)}"


def full_cache(output: str) -> str | None:
    """Return why a tool could not write to the cache, if its output reports a full disk; None otherwise."""
    if not reports_full_disk(output):
        return None
    place = cache_path()
    return f"{place}: {os.strerror(errno.ENOSPC)}: {_REMEDIES[errno.ENOSPC]}, or {_other_folder(str(place))}"


def reports_full_disk(output: str) -> bool:
    """Return whether a tool's output reports a full disk, in whatever letters."""
    return any(os.strerror(number).lower() in output.lower() for number in _FULL)


def fullest(places: Iterable[Path]) -> Path:
    """Return the path, of those that exist, whose disk has the least free space."""
    return min((place for place in places if place.exists()), key=lambda place: shutil.disk_usage(place).free)


def require_temporary() -> None:
    """Check that TMPDIR, if set, can be written to: Python ignores an unusable one, and other tools fail with it.

    Raises:
        UsageError: It does not exist, or can't be written to.
    """
    if not (named := os.environ.get("TMPDIR")):
        return
    if not Path(named).is_dir():
        why = "is no folder"
    elif not os.access(named, os.W_OK | os.X_OK):
        why = "can't be written to"
    else:
        return
    raise UsageError(f"TMPDIR is {named}, which {why}: set it to a folder that can be written to, or unset it")


def _number_and_place(error: OSError) -> tuple[int | None, str]:
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, place, reason = error.args[0][0]
        found = _NUMBER.search(str(reason))
        return int(found[1]) if found else None, str(place)
    return error.errno, "" if error.filename is None else os.fsdecode(error.filename)


def _full_places() -> Generator[Path]:
    """Yield the paths on a full disk among those that a command may have written to: the error may name none."""
    named = (_standing(path) for path in _named_paths())
    for place in dict.fromkeys((_printed(), *named, Path.cwd(), _temporary(), cache_path())):
        if place is not None and place.exists():
            state = os.statvfs(place)
            if not state.f_bavail or not state.f_favail:
                yield place


def _standing(path: Path) -> Path:
    """Return the path, or the nearest existing folder above it."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _printed() -> Path | None:
    """Return the file that standard output is redirected to, if any."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(1).st_mode):
            return Path("/proc/self/fd/1").resolve()
    return None


def _temporary() -> Path:
    return Path(os.environ.get("TMPDIR") or tempfile.gettempdir())


def _named_paths() -> list[Path]:
    words = [word.rpartition("=")[2] for word in sys.argv[1:]]
    return [Path(word).absolute() for word in words if word]


def _is_named(path: Path) -> bool:
    """Return whether the command line names the path or a folder above it, or redirects its output to it."""
    return path == _printed() or any(path.is_relative_to(named) for named in _named_paths())


def _other_folder(place: str) -> str:
    path, cache, temporary = Path(place).absolute(), cache_path(), _temporary()
    if path.is_relative_to(cache) or cache.is_relative_to(path):
        return "set HARBOR_GYM_CACHE to another folder"
    is_started_in = temporary in Path.cwd().parents and path.is_relative_to(Path.cwd())
    if path.is_relative_to(temporary) and not is_started_in and not _is_named(path):
        return "set TMPDIR to another folder"
    return "name another folder"
