"""A node's cache of task directories, by the hash of their content."""

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.files import publishing_once
from harbor_gym.errors import TaskError
from harbor_gym.tasks.links import require_own_files

_STORE = "tasks"


@dataclass(frozen=True)
class PackedTask:
    """A task directory as an archive. Equal directories of equal names have equal digests at any path."""

    digest: str
    """SHA-256 of the archive, hexadecimal."""

    archive: bytes
    """A tar without times, users and groups, with one folder, which has the task's name."""


def pack_task(task_dir: Path) -> PackedTask:
    """Return a task directory as an archive.

    Raises:
        TaskError: There is no such directory, or it has links that leave it.
    """
    if not task_dir.is_dir():
        raise TaskError(f"{task_dir} is not a directory of this machine: the nodes of a cluster get a task from there")
    require_own_files(task_dir)
    buffer = io.BytesIO()
    root = task_dir.resolve()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted([root, *root.rglob("*")]):
            inside = Path(root.name) / path.relative_to(root)
            archive.add(path, arcname=inside.as_posix(), recursive=False, filter=_anonymous)
    content = buffer.getvalue()
    return PackedTask(hashlib.sha256(content).hexdigest(), content)


def has_task(digest: str) -> bool:
    """Return whether this node's cache holds a task."""
    return _home(digest).is_dir()


def task_path(digest: str) -> Path:
    """Return a task's directory in this node's cache."""
    (path,) = _home(digest).iterdir()
    return path


def unpack_task(task: PackedTask) -> Path:
    """Put a task into this node's cache, whole or not at all, and return its path. Safe for concurrent processes."""
    home = _home(task.digest)
    if not home.is_dir():
        with publishing_once(home) as building, tarfile.open(fileobj=io.BytesIO(task.archive)) as archive:
            building.mkdir()
            archive.extractall(building, filter="tar")
    return task_path(task.digest)


def _home(digest: str) -> Path:
    return cache_dir() / _STORE / digest


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member
