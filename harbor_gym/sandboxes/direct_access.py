"""What this process does with a sandbox's files by itself, where it may: no process is needed there.

Only what is plain: directories and regular files, copied to places where nothing is yet. Whatever else is met is left
to commands in the sandbox, which do the whole again. A sandbox's files may change at any moment, so each is reached
from its directory's descriptor and never through a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator
from pathlib import Path, PurePosixPath

from harbor_gym.owners import start_time

_MAX_BYTES, _MAX_ENTRIES, _MAX_DEPTH = 4 << 20, 500, 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ANYTHING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


def upload(source: Path, root: int, target: PurePosixPath) -> None:
    """Copy the contents of a directory of this machine into a sandbox's, made if absent: owned by root, modes kept.

    Raises:
        NotPlainError: See there.
    """
    with (
        _not_plain_for_all_errors(),
        _opened(str(source), _DIRECTORY) as here,
        _walked(root, target, make=True) as there,
    ):
        _Copy(_as_root, 0o700).copy(here, there)


def download(root: int, source: PurePosixPath, target: Path) -> None:
    """Copy the contents of a sandbox's directory into one of this machine, made if absent.

    As with tarfile's "data" filter, files become the caller's, without special bits and not to be written by others.

    Raises:
        NotPlainError: See there.
    """
    with _not_plain_for_all_errors(), _walked(root, source, make=False) as there:
        target.mkdir(parents=True, exist_ok=True)
        with _opened(str(target), _DIRECTORY) as here:
            _Copy(_as_data, 0o777).copy(there, here)


def _as_root(handle: int, status: os.stat_result) -> None:
    os.fchown(handle, 0, 0)
    os.fchmod(handle, stat.S_IMODE(status.st_mode))
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


def _as_data(handle: int, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        kept = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        os.fchmod(handle, status.st_mode & kept | 0o600)
        os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


class _Copy:
    def __init__(self, settle: Callable[[int, os.stat_result], None], directory_mode: int) -> None:
        self._settle = settle
        self._directory_mode = directory_mode
        self._bytes, self._entries = _MAX_BYTES, _MAX_ENTRIES

    def copy(self, source: int, target: int, depth: int = 0) -> None:
        """Copy what is in one directory into another."""
        with os.scandir(source) as entries:
            for entry in entries:
                self._entries -= 1
                if self._entries < 0 or depth > _MAX_DEPTH:
                    raise NotPlainError("it is large")
                with _opened(entry.name, _ANYTHING, source) as original:
                    self._copy_entry(entry.name, original, target, depth)

    def _copy_entry(self, name: str, original: int, target: int, depth: int) -> None:
        status = os.fstat(original)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(name, self._directory_mode, dir_fd=target)
            with _opened(name, _DIRECTORY | os.O_NOFOLLOW, target) as made:
                self.copy(original, made, depth + 1)
                self._settle(made, status)
        elif stat.S_ISREG(status.st_mode):
            with _opened(name, _NEW_FILE, target) as made:
                self._copy_bytes(original, made)
                self._settle(made, status)
        else:
            raise NotPlainError(f"{name!r} is neither a directory nor a regular file")

    def _copy_bytes(self, source: int, target: int) -> None:
        while content := os.read(source, self._bytes + 1):
            self._bytes -= len(content)
            if self._bytes < 0:
                raise NotPlainError("it is large")
            while content:
                content = content[os.write(target, content) :]


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
