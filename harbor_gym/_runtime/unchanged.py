"""Results that depend on a folder's files alone, kept until one of them changes."""

import hashlib
import os
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any

_KEPT = 256
_FINE_NS, _COARSE_NS = 100_000_000, 2_000_000_000
"""A file that changed so recently may change again without another time stamp: most file systems count ticks of the
kernel, some whole seconds."""

_kept = attrgetter("st_dev", "st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")


class UntilChanged[T]:
    """Results by folder, each kept until the content, mode or name of one of the folder's files changes."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, bytes], T] = {}
        self._looks: dict[Path, _Look] = {}

    def get(self, folder: Path, find: Callable[[], T]) -> T:
        """Return the result for a folder; ``find`` is called if there is none, or a change may be missed.

        Args:
            folder: A directory. Nothing is kept while a link in it may lead to files outside of it.
            find: Finds the result from the folder's files.
        """
        if folder not in self._looks:
            _make_room(self._looks)
        state = self._looks.setdefault(folder, _Look(folder)).state()
        if state is None:
            return find()
        key = folder, state
        if key not in self._known:
            _make_room(self._known)
            self._known[key] = find()
        return self._known[key]


def _make_room(results: dict[Any, Any]) -> None:
    for old in list(results)[: max(0, len(results) + 1 - _KEPT)]:  # a copy: other threads use it, too
        results.pop(old, None)


class _Look:
    """Looks at a folder. Threads that ask during one share the next: it begins after all of them have asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._begun = 0
        self._seen: bytes | None = None

    def state(self) -> bytes | None:
        """Return :func:`_state` of a moment after this call."""
        asked = self._begun
        with self._lock:
            if self._begun == asked:
                self._begun, self._seen = asked + 1, None
                self._seen = _state(self._folder)
            return self._seen


def _state(folder: Path) -> bytes | None:
    """Return a digest that another follows at any change of a folder's files; None if that is not certain."""
    total, newest, now = hashlib.sha256(), 0, time.time_ns()
    folders = [(os.fspath(folder), 0)]  # names instead of paths, and few calls a file: there may be many
    try:
        for place, depth in folders:
            with os.scandir(place) as found:
                entries = list(found)
            links = [(entry.name, os.readlink(entry.path)) for entry in entries if entry.is_symlink()]  # noqa: PTH115
            if not all(_stays(target, depth) for _, target in links):
                return None
            statuses = [_kept(os.stat(place)), *(_kept(entry.stat(follow_symlinks=False)) for entry in entries)]  # noqa: PTH116
            total.update(repr((place, links, [entry.name for entry in entries], statuses)).encode())
            newest = max(newest, *(status[-1] for status in statuses))
            folders += [(entry.path, depth + 1) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None  # its reader's own error states what is wrong
    needed_ns = _FINE_NS if newest % 1_000_000_000 else _COARSE_NS
    return total.digest() if now - newest > needed_ns else None


def _stays(target: str, depth: int) -> bool:
    """Return whether a link stays in a folder whose other links do: first up, at most to that folder, then down.

    Args:
        target: The link's text.
        depth: Folders from that folder to the link's own.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and ups <= depth and ".." not in parts[ups:]
