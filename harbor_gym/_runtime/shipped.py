"""The tasks that come with the package, by name: ``task:devops_task``."""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.errors import UsageError
from harbor_gym._runtime.files import StrPath, publishing_once

_logger = logging.getLogger(__name__)

PREFIX = "task:"

_IGNORED = ("__pycache__", "*.pyc")
"""Files that an installer may have added to a task's."""


def is_shipped(path: StrPath) -> bool:
    """Return whether a path is written like the name of a shipped task, ``task:NAME``."""
    return os.fspath(path).startswith(PREFIX)


def shipped_tasks() -> list[str]:
    """Return the names of the shipped tasks."""
    return sorted(path.parent.name for path in _source().glob("*/task.toml"))


def resolve_shipped(path: StrPath) -> Path:
    """Return the directory of the shipped task that a path names; any other path as it is.

    A task's files are copied once from the installed package into the cache, without an installer's files.

    Raises:
        UsageError: No task of that name is shipped.
    """
    if not is_shipped(path):
        return Path(path)
    name = os.fspath(path).removeprefix(PREFIX)
    if name not in shipped_tasks():
        raise UsageError(
            f"no task {str(path)!r} is shipped; there are {', '.join(PREFIX + n for n in shipped_tasks())}"
        )
    return _copy(_source() / name, str(cache_dir()))


@functools.cache
def _copy(source: Path, cache: str) -> Path:
    digest = folder_digest(source)
    place = Path(cache) / "tasks" / digest[:16] / source.name
    if place.exists() and folder_digest(place) != digest:
        _logger.warning("%s was damaged since it was copied: it is copied again", place)
        broken = tempfile.TemporaryDirectory(prefix=".broken-", dir=place.parent, ignore_cleanup_errors=True)
        with broken as folder, contextlib.suppress(FileNotFoundError):  # another process has moved it
            place.rename(Path(folder) / place.name)  # one step: no reader finds it half removed
    if not place.is_dir():
        with publishing_once(place) as building:
            shutil.copytree(source, building, ignore=shutil.ignore_patterns(*_IGNORED))
    return place


def folder_digest(folder: Path) -> str:
    """Return a digest of the names and the content of a folder's files."""
    digest = hashlib.sha256()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    for path in files:
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o100}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _source() -> Path:
    """Return the folder of the tasks: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    return next((path for path in (package / "_tasks", package.parent / "tasks") if path.is_dir()), package / "_tasks")
