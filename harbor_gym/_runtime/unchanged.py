"""Results that depend on a folder's files alone, kept until one of them changes."""

import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

_KEPT = 256
_FINE_NS, _COARSE_NS = 100_000_000, 2_000_000_000
"""A file that changed so recently may change again without another time stamp: most file systems count ticks of the
kernel, some whole seconds."""


class UntilChanged[T]:
    """Results by folder, each kept until the content, mode or name of one of the folder's files changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, bytes], T] = {}

    def get(self, folder: Path, find: Callable[[], T]) -> T:
        """Return the result for a folder; ``find`` is called if there is none, or a change may be missed.

        Args:
            folder: A directory. Nothing is kept while there is a link in it, which may lead to other files.
            find: Finds the result from the folder's files.
        """
        state = _state(folder)
        if state is None:
            return find()
        key = folder, state
        if key not in self._known:
            for old in list(self._known)[: max(0, len(self._known) + 1 - _KEPT)]:  # a copy: other threads use it, too
                self._known.pop(old, None)
            self._known[key] = find()
        return self._known[key]


def _state(folder: Path) -> bytes | None:
    """Return a digest that another follows at any change of a folder's files; None if that is not certain."""
    total, newest, now = hashlib.sha256(), 0, time.time_ns()
    folders = [os.fspath(folder)]
    try:
        for place in folders:
            with os.scandir(place) as entries:
                found = [(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]
            for path, status in ((place, os.stat(place)), *found):  # noqa: PTH116 - as fast as possible
                kept = status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns
                total.update(f"{path}\0{kept} {status.st_ctime_ns}\0".encode(errors="surrogateescape"))
                newest = max(newest, status.st_ctime_ns)
            if any(stat.S_ISLNK(status.st_mode) for _, status in found):
                return None
            folders += [path for path, status in found if stat.S_ISDIR(status.st_mode)]
    except OSError:
        return None  # its reader's own error states what is wrong
    needed_ns = _FINE_NS if newest % 1_000_000_000 else _COARSE_NS
    return total.digest() if now - newest > needed_ns else None
