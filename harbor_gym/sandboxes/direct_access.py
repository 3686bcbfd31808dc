"""What this process does with a sandbox's files by itself, where it may: no process is needed there.

Whatever is not plain is left to commands in the sandbox. A sandbox's files may change at any moment, so each is reached
from its directory's descriptor and never through a link. Transfers of files are done elsewhere (``transfers``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from pathlib import PurePosixPath

from harbor_gym.owners import start_time

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC
_FIRST_PROCESS = "1"
_STATE, _THREADS = 0, 17
"""Of the fields of /proc/PID/stat that follow the name."""


class NotPlainError(Exception):
    """There is more to do than is done here. Some of it may have been done."""


@contextlib.contextmanager
def root_of(pid: int, started: str) -> Generator[int]:
    """Open the root directory of a sandbox by its first process.

    Raises:
        NotPlainError: This process may not, or that one is gone.
    """
    with _not_plain_for_all_errors(), _opened(f"/proc/{pid}/root", _DIRECTORY) as root:
        if str(start_time(pid)) != started:
            raise NotPlainError(f"process {pid} is another one now")
        yield root


def settle_at_rest(
    root: int, look_into: Sequence[PurePosixPath], output: PurePosixPath | None, missing: Sequence[PurePosixPath]
) -> tuple[PurePosixPath, ...]:
    """Look into directories of a sandbox in which nothing runs but its first process, and open one to all.

    Args:
        root: The sandbox's.
        look_into: Directories of which to tell whether they are empty.
        output: An empty directory of root's, which everybody may write to then.
        missing: What must not be there.

    Returns:
        Those of ``look_into`` that hold nothing.

    Raises:
        NotPlainError: Something runs, or is not as it must be. Nothing was done.
    """
    with _not_plain_for_all_errors():
        if _runs_anything(root):
            raise NotPlainError("something runs in the sandbox")
        if any(_holds(root, path) is not None for path in missing):
            raise NotPlainError(f"one of {missing} is there")
        empty = tuple(path for path in look_into if _holds(root, path) is False)
        if output is not None:
            with _walked(root, output, make=False) as place:
                if os.fstat(place).st_uid != 0 or _holds_anything(place):
                    raise NotPlainError(f"{output} is not root's, or not empty")
                os.fchmod(place, 0o777)
        return empty


def _runs_anything(root: int) -> bool:
    with _opened("proc", _DIRECTORY | os.O_NOFOLLOW, root) as processes:
        found = _list(processes)
        if _FIRST_PROCESS not in found:
            raise NotPlainError("the sandbox's processes can't be seen")
        # Listed once more: one that ended meanwhile may have left a successor.
        return any(_is_alive(processes, pid) for pid in found - {_FIRST_PROCESS}) or not _list(processes) <= found


def _list(processes: int) -> set[str]:
    with os.scandir(processes) as entries:
        return {entry.name for entry in entries if entry.name.isdecimal()}


def _is_alive(processes: int, pid: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), _opened(f"{pid}/stat", _FILE, processes) as file:
        fields = os.read(file, 4096).rpartition(b") ")[2].split()
        # A process whose first thread has ended looks dead, and its others run on.
        return fields[_STATE] not in (b"Z", b"X") or int(fields[_THREADS]) > 1
    return False


def _holds(root: int, path: PurePosixPath) -> bool | None:
    """Tell whether a directory holds anything; None where there is nothing by that name.

    Raises:
        NotPlainError: It is no directory, or there is a link on the way.
    """
    try:
        with _walked(root, path, make=False) as place:
            return _holds_anything(place)
    except FileNotFoundError:
        return None


def _holds_anything(place: int) -> bool:
    with os.scandir(place) as entries:
        return next(entries, None) is not None


@contextlib.contextmanager
def _walked(root: int, path: PurePosixPath, *, make: bool) -> Generator[int]:
    """Go from a sandbox's root to a directory, through no link; make what is missing, if wanted."""
    names = path.parts[1:]
    if path.anchor != "/" or ".." in names:
        raise NotPlainError(f"{path} is relative")
    with contextlib.ExitStack() as opened:
        place = root
        for name in names:
            try:
                place = opened.enter_context(_opened(name, _DIRECTORY | os.O_NOFOLLOW, place))
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o700, dir_fd=place)
                place = opened.enter_context(_opened(name, _DIRECTORY | os.O_NOFOLLOW, place))
                os.fchown(place, 0, 0)
                os.fchmod(place, 0o755)
        yield place


@contextlib.contextmanager
def _opened(path: str, flags: int, place: int | None = None) -> Generator[int]:
    handle = os.open(path, flags, 0o600, dir_fd=place)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _not_plain_for_all_errors() -> Generator[None]:
    try:
        yield
    except OSError as exc:
        raise NotPlainError(str(exc)) from exc
