"""Find the tasks at a path."""

from collections.abc import Iterable
from pathlib import Path

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.shipped import resolve_shipped
from harbor_gym.errors import UsageError


def find_tasks(paths: Iterable[StrPath]) -> list[Path]:
    """Return the task directories at ``paths``: each path itself, or those directly inside it, by name; none twice.

    ``task:NAME`` is a shipped task.

    Raises:
        UsageError: There is no such directory, or no task in it.
    """
    return list(dict.fromkeys(task for path in paths for task in _tasks_at(path)))


def _tasks_at(path: StrPath) -> list[Path]:
    path = resolve_shipped(path)
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; give a task directory or a directory of tasks")
    if (path / "task.toml").is_file():
        return [path.resolve()]
    tasks = sorted(child.resolve() for child in path.iterdir() if (child / "task.toml").is_file())
    if not tasks:
        raise UsageError(f"{path} holds no task.toml, nor does any directory directly inside it")
    return tasks
