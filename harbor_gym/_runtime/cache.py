"""The cache of built files: its folder, the locks between processes, and the removal of its entries."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.errors import UsageError
from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym._runtime.rootless import remove_tree

_LOCK_POLL_SEC = 0.05
_USED = ".used"
"""File in an entry's directory: users hold a shared lock on it; its modification time is the last use."""

_REMOVED = ".removed-"
_BASE_LOCKS = ("base-import", "docker-import")
"""The locks that readers of a base hold."""
LAYERS_LOCK = "layers"
"""Writers of layers hold this lock until an image's record names them: layers that no record names may be removed."""
STORE_LOCK = "store"
"""Builds share this lock; who removes images from buildah's store by itself has it alone, as a build may need any."""

_LIMIT = "HARBOR_GYM_CACHE_GIB"
_MEASURED = ("image", "layer", "base")
"""The kinds of entries that a limit counts."""


def cache_dir() -> Path:
    """Return the cache directory, made if absent: $HARBOR_GYM_CACHE, $XDG_CACHE_HOME/harbor_gym or ~/.cache/harbor_gym.

    Everything in it can be deleted at any time when nothing runs.

    Raises:
        UsageError: It can't be made.
    """
    return _made(cache_path())


def mountpoint() -> Path:
    """Return an empty directory, made if absent, where each sandbox's files are mounted in a namespace of its own."""
    place = cache_dir() / "mountpoint"
    place.mkdir(exist_ok=True)
    return place


def cache_limit() -> int | None:
    """Return the limit of images, layers and bases in bytes, from $HARBOR_GYM_CACHE_GIB; None if there is none.

    Raises:
        UsageError: It is no positive number.
    """
    text = os.environ.get(_LIMIT, "")
    if not text:
        return None
    with contextlib.suppress(ValueError, OverflowError):
        if (limit := int(float(text) * (1 << 30))) > 0:
            return limit
    raise UsageError(
        f"{_LIMIT}={text} is no positive number: give the limit of the cache's images in GiB, as in 20 or 0.5"
    )


def require_cache() -> None:
    """Check that the cache directory can be written to; a full disk is not noticed.

    Raises:
        UsageError: It can't be made or written to.
    """
    if not os.access(path := cache_dir(), os.W_OK | os.X_OK):
        raise _unusable(path, "it can't be written to")


def _unusable(path: Path, why: str | None) -> UsageError:
    return UsageError(
        f"the cache {path} can't be used ({why}): set HARBOR_GYM_CACHE to a folder that can be written to"
    )


def cache_path() -> Path:
    """Return where the cache directory is, or is going to be made."""
    return _path_of(*(os.environ.get(name) for name in ("HARBOR_GYM_CACHE", "XDG_CACHE_HOME", "HOME")))


@functools.cache  # every start of a sandbox asks a dozen times
def _path_of(named: str | None, shared: str | None, home: str | None) -> Path:
    above = Path(shared) if shared else Path(home or Path.home()) / ".cache"
    return (Path(named) if named else above / "harbor_gym").expanduser().absolute()


@functools.cache
def _made(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _unusable(path, exc.strerror) from exc
    return path


# --- locks -----------------------------------------------------------------------------------------------------------
# flock, not filelock: its shared lock is an SQLite database, which breaks after a fork (sandboxes' supervisors are
# forked), and which can't lie in the directory that it locks and be renamed with it.


@contextlib.asynccontextmanager
async def locked(name: str, *, shared: bool = False) -> AsyncGenerator[None]:
    """Hold the cache's lock ``name`` against every task and process that shares the cache directory.

    The lock ends with its holder, even a killed one. Waiting is polled, so it can be cancelled.

    Args:
        name: The lock's name.
        shared: Hold it together with others that share it, against those that do not.
    """
    handle = _open_lock(name)
    try:
        while True:
            if _flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                break
            await asyncio.sleep(_LOCK_POLL_SEC)
        yield
    finally:
        os.close(handle)


@contextlib.asynccontextmanager
async def building() -> AsyncGenerator[None]:
    """Hold one of the places for builds, of which there is one for each processor, against all that share the cache.

    A build begins within it, and whatever limits the build's time: the wait for a place is no part of the build.
    """
    async with locked("building"):  # one of those who wait looks for a place
        while True:
            if (handle := _free_place()) is not None:
                break
            await asyncio.sleep(_LOCK_POLL_SEC)
    try:
        yield
    finally:
        os.close(handle)


def _free_place() -> int | None:
    for number in range(len(os.sched_getaffinity(0))):
        handle = _open_lock(f"building-{number}")
        if _flock(handle, fcntl.LOCK_EX):
            return handle
        os.close(handle)
    return None


@contextlib.contextmanager
def locked_at_once(name: str) -> Generator[bool]:
    """Hold the lock ``name`` if it is free; yield whether it was."""
    handle = _open_lock(name)
    try:
        yield _flock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _open_lock(name: str) -> int:
    path = cache_dir() / "locks" / f"{name}.lock"
    path.parent.mkdir(exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _flock(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Hold:
    """A lock that keeps one entry from being pruned until it is released, or its process ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Release the lock. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def hold(directory: Path) -> Hold | None:
    """Keep the entry in ``directory`` from being pruned, and note its use; None if it is removed or being removed.

    Read the entry's files only afterwards.
    """
    try:
        handle = os.open(directory / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    if not _flock(handle, fcntl.LOCK_SH):
        os.close(handle)
        return None
    os.utime(handle)
    return Hold(handle)


# --- entries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry of the cache."""

    kind: str
    """``image`` (a task's root file system), ``layer`` (shared by several images), ``base`` (made from packages), or
    the name of another folder."""

    path: Path
    what: str
    """What the entry was made for; empty if unknown."""

    size_bytes: int
    """Space on disk; for an image without the layers that it shares."""

    last_used: float
    """Seconds since the epoch."""

    in_use: bool
    """Whether a running process holds it; False for kinds whose use is not tracked."""

    can_be_pruned: bool
    """Whether :func:`prune` removes it when it is unused. A layer is removed with its last image."""

    built: str = ""
    """buildah's id of the image that its Dockerfile made; empty for other entries."""


def entries() -> list[CacheEntry]:
    """Return all entries, the least recently used first. Reads every file's size: seconds for gigabytes."""
    home = cache_dir()
    users = _layer_users()
    sizes = {path.name: _measure(path) for path in _children(layers_dir())}
    found: list[CacheEntry] = []
    for path in _children(home / "images"):
        own = [sizes[name][0] for name in _layers_of(path) if users[name] == 1 and name in sizes]
        found.append(_image(path, sum(own)))
    for name, (size, changed) in sizes.items():
        if users[name] != 1:
            what = f"shared by {users[name]} images" if users[name] else "unused"
            found.append(
                CacheEntry("layer", layers_dir() / name, what, size, changed, in_use=False, can_be_pruned=False)
            )
    found += [_base(path) for path in _children(home / "bases") if path.suffix == ".tar"]
    for folder in _children(home):
        if folder.is_dir() and folder.name not in ("images", "layers", "bases", "locks", "mountpoint"):
            size, changed = _measure(folder)
            found.append(CacheEntry(folder.name, folder, "", size, changed, in_use=False, can_be_pruned=False))
    return sorted(found, key=lambda entry: entry.last_used)


def layers_dir() -> Path:
    """Return the folder of layers: directories named by content, each shared by any number of images."""
    path = cache_dir() / "layers"
    path.mkdir(exist_ok=True)
    return path


def _layer_users() -> Counter[str]:
    """Return how many images use each layer, including replaced images that may still run."""
    return Counter(name for home in _children(cache_dir() / "images") for name in _layers_of(home))


def _layers_of(home: Path) -> set[str]:
    return {name for record in home.glob("*.json") for name in object_or_empty(record).get("layers", ())}


def count_entries(layers: Iterable[str]) -> dict[str, int]:
    """Return the number of names at the top of each layer, for an image's record (``entries``)."""
    return {name: len(os.listdir(layers_dir() / name)) for name in layers}  # noqa: PTH208  # names are counted


def is_whole(home: Path, layers: Iterable[str], entries: Mapping[str, int]) -> bool:
    """Return whether an image's record and layers exist, and no layer lost a name at its top.

    Args:
        home: The image's directory. Its record is not read.
        layers: The layers' names.
        entries: The result of :func:`count_entries` when the image was made.
    """
    return (home / "image.json").is_file() and not _broken_layers(layers, entries)


def find_broken_layers(home: Path) -> list[Path]:
    """Return the remains of an image's layers that lost files."""
    entries: dict[str, int] = object_or_empty(home / "image.json").get("entries", {})
    broken = [layers_dir() / name for name in _broken_layers(_layers_of(home), entries)]
    return [path for path in broken if path.is_dir()]


def remove_broken_layers(home: Path) -> list[Path]:
    """Remove the remains of an image's layers that lost files, so that they are made again; return their paths.

    Hold :data:`LAYERS_LOCK`.
    """
    there = find_broken_layers(home)
    for path in there:
        remove_tree(_out_of_sight(path))
    return there


def _broken_layers(layers: Iterable[str], entries: Mapping[str, int]) -> list[str]:
    broken, place = list[str](), layers_dir()
    for name in layers:
        try:
            found = len(os.listdir(place / name))  # noqa: PTH208  # names are counted
        except (FileNotFoundError, NotADirectoryError):
            found = -1
        if found != entries.get(name, max(found, 0)):
            broken.append(name)
    return broken


def _children(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _image(path: Path, layer_bytes: int) -> CacheEntry:
    size, changed = _measure(path)
    size += layer_bytes
    with contextlib.suppress(OSError):
        changed = (path / _USED).stat().st_mtime
    record = object_or_empty(path / "image.json")
    what = str(record.get("made_for", "unfinished" if not record else ""))
    built = str(record.get("built", ""))
    with _unused(path) as is_free:
        return CacheEntry("image", path, what, size, changed, in_use=not is_free, can_be_pruned=True, built=built)


def _base(path: Path) -> CacheEntry:
    status = path.stat()
    with _unused(path) as is_free:
        return CacheEntry(
            "base", path, path.stem, status.st_blocks * 512, status.st_mtime, in_use=not is_free, can_be_pruned=True
        )


def _measure(folder: Path) -> tuple[int, float]:
    """Return the space of a tree in bytes, hard links counted once, and the modification time of its top."""
    seen: set[tuple[int, int]] = set()
    size = 0
    for directory, _, names in os.walk(folder):
        for name in (".", *names):
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - a Path per file takes twice as long
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    size += status.st_blocks * 512
    return size, folder.stat().st_mtime


@contextlib.contextmanager
def _unused(path: Path) -> Generator[bool]:
    """Keep new users from an image or a base during the block; yield whether it has no user."""
    if path.suffix == ".tar":
        with contextlib.ExitStack() as stack:
            names = (*_BASE_LOCKS, f"base-{path.stem}")
            are_free = [stack.enter_context(locked_at_once(name)) for name in names]
            yield all(are_free)
        return
    with locked_at_once(f"image-{path.name}") as is_built:
        try:
            handle = os.open(path / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            yield False
            return
        try:
            yield is_built and _flock(handle, fcntl.LOCK_EX)
        finally:
            os.close(handle)


# --- removal ---------------------------------------------------------------------------------------------------------


def prune(
    *, older_than_sec: float | None = None, max_bytes: int | None = None, everything: bool = False
) -> list[CacheEntry]:
    """Remove images and bases that no running process uses, and layers with their last image; return the removed ones.

    Safe beside running processes: one that lacks a removed image builds it. Entries in use stay, as does a base that
    the system refuses to remove.

    Args:
        older_than_sec: Remove entries that were not used for so long.
        max_bytes: Remove the least recently used images until images, layers and bases take no more than that.
        everything: Remove all entries.
    """
    present = entries()
    total = sum(entry.size_bytes for entry in present if entry.kind in _MEASURED)
    shared = {entry.path: entry for entry in present if entry.kind == "layer"}
    now = time.time()
    gone = [shared[path] for path in _remove_unused_layers() if path in shared]
    total -= sum(entry.size_bytes for entry in gone)
    for entry in present:
        is_old = older_than_sec is not None and now - entry.last_used > older_than_sec
        is_too_much = max_bytes is not None and total > max_bytes and entry.kind != "base"
        if entry.can_be_pruned and (everything or is_old or is_too_much) and _remove(entry.path):
            layers = [shared[path] for path in _remove_unused_layers() if path in shared]
            gone += [entry, *layers]
            total -= sum(item.size_bytes for item in (entry, *layers))
    for leftover in (cache_dir() / "images").glob(f"{_REMOVED}*"):
        remove_tree(leftover)
    return gone


def _remove(path: Path) -> bool:
    with _unused(path) as is_free:
        if not is_free:
            return False
        if path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()  # refused for a mounted file, or another user's
            return not path.exists()
        removed = _out_of_sight(path)
    remove_tree(removed)
    return True


def _out_of_sight(path: Path) -> Path:
    """Rename an entry before its removal, so that no reader finds it half removed; return its new path."""
    removed = path.with_name(f"{_REMOVED}{uuid.uuid4().hex}")
    path.rename(removed)
    return removed


def _remove_unused_layers() -> list[Path]:
    """Remove the layers that no image uses, unless one is just being added; return their former paths."""
    with locked_at_once(LAYERS_LOCK) as is_free:
        if not is_free:
            return []
        users = _layer_users()
        unused = [path for path in _children(layers_dir()) if not users[path.name]]
        for path in unused:
            _out_of_sight(path)
        for leftover in layers_dir().glob(f"{_REMOVED}*"):
            remove_tree(leftover)
    return unused
