"""The tasks that come with the package, by name: ``task:devops_task``."""

import contextlib
import functools
import hashlib
import logging
import shutil
import tempfile
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.files import publishing_once
from harbor_gym.errors import UsageError

_logger = logging.getLogger(__name__)

PREFIX = "task:"

_IGNORED = ("__pycache__", "*.pyc")
"""What an installer may have put among a task's files."""


def is_shipped(path: str | Path) -> bool:
    """Return whether a path is the name of a task that is shipped."""
    return str(path).startswith(PREFIX)


def shipped_tasks() -> list[str]:
    """Return the names of the tasks that are shipped."""
    return sorted(path.parent.name for path in _source().glob("*/task.toml"))


def resolve_shipped(path: str | Path) -> Path:
    """Return a path as it is, or where the files of the shipped task lie that it names.

    They are copied out of the installed package once, into the cache, as they were when the package was built.

    Raises:
        UsageError: No task of that name is shipped.
    """
    if not is_shipped(path):
        return Path(path)
    name = str(path).removeprefix(PREFIX)
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
        with broken as folder, contextlib.suppress(FileNotFoundError):  # another process is at it
            place.rename(Path(folder) / place.name)  # out of sight in one step, as it came
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
    """Return where the tasks lie: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    return next((path for path in (package / "_tasks", package.parent / "tasks") if path.is_dir()), package / "_tasks")
