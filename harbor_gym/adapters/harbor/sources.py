"""Fetch the tasks of Harbor's configurations."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from harbor.models.trial.config import TaskConfig

from harbor_gym.errors import UsageError
from harbor_gym.tasks import SourcedTask, resolve_tasks
from harbor_gym.tasks.links import require_own_files


async def resolve_task_configs(tasks: Sequence[TaskConfig]) -> list[tuple[TaskConfig, Path]]:
    """Return each task's configuration, pinned to its current commit or directory, and its local directory.

    Equal tasks are fetched once. Tasks from git or a registry are in Harbor's cache afterwards, so that concurrent
    trials do not fetch them again.

    Raises:
        UsageError: A source has no task, or several.
        TaskError: A task's directory has links that leave it.
        TaskSourceError: A repository or registry can't be reached, or has no such task.
    """
    fetched: dict[str, SourcedTask] = {}
    resolved: list[tuple[TaskConfig, Path]] = []
    for task in tasks:
        key = task.model_dump_json()
        if key not in fetched:
            fetched[key] = await _fetch(task)
            await asyncio.to_thread(require_own_files, fetched[key].path)
        found = fetched[key]
        resolved.append((_pinned(task, found), found.path))
    return resolved


def _pinned(task: TaskConfig, found: SourcedTask) -> TaskConfig:
    if task.is_git_task():
        return task.model_copy(update={"git_commit_id": found.commit})
    return task if task.is_package_task() else task.model_copy(update={"path": found.path})


async def _fetch(task: TaskConfig) -> SourcedTask:
    source = _source(task)
    found = await resolve_tasks([source], download_dir=task.download_dir)
    if len(found) != 1:
        raise UsageError(f"{source} holds {len(found)} tasks: give one TaskConfig for each")
    return found[0]


def _source(task: TaskConfig) -> str | Path:
    if task.is_git_task():
        commit = f"@{task.git_commit_id}" if task.git_commit_id else ""
        return f"git+{task.git_url}{commit}#{task.path}"
    if task.is_package_task():
        return f"{task.name}@{task.ref}" if task.ref else f"{task.name}"
    assert task.path is not None
    return task.path
