"""Find tasks by the aliases of their datasets."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from harbor_gym.adapters.nemo_gym.settings import DatasetSettings
from harbor_gym.errors import UsageError
from harbor_gym.tasks import find_tasks, resolve_tasks, task_path


class Datasets:
    """Finds tasks by ``alias::task``. Datasets in git or a registry are fetched once, at their first use.

    Args:
        datasets: Alias → dataset.
        root: The base of relative paths.
    """

    def __init__(self, datasets: Mapping[str, DatasetSettings], *, root: Path) -> None:
        self._datasets, self._root = dict(datasets), root
        self._fetched: dict[str, dict[str, Path]] = {}
        self._locks = {alias: asyncio.Lock() for alias in self._datasets}

    async def find(self, instance_id: str) -> Path:
        """Return a task's directory.

        Raises:
            UsageError: There is no such alias or task.
            TaskSourceError: The dataset can't be fetched.
        """
        alias, mark, name = instance_id.partition("::")
        dataset = self._datasets.get(alias)
        if not mark or dataset is None:
            raise UsageError(
                f"instance_id is ALIAS::TASK with an alias of {', '.join(sorted(self._datasets))}, got {instance_id!r}"
            )
        if dataset.local_dataset_path is not None:
            tasks = await asyncio.to_thread(_local, self._root / task_path(dataset.local_dataset_path), name)
        else:
            tasks = await self._fetch(alias, dataset)
        if name not in tasks:
            raise UsageError(f"the dataset {alias!r} has no task {name!r}")
        return tasks[name]

    async def _fetch(self, alias: str, dataset: DatasetSettings) -> Mapping[str, Path]:
        async with self._locks[alias]:
            if alias not in self._fetched:
                found = await resolve_tasks([_source(dataset)])
                self._fetched[alias] = {task.name: task.path for task in found}
        return self._fetched[alias]


def _local(path: Path, name: str) -> Mapping[str, Path]:
    """Return the task of that name, if there is one now; a directory may get tasks while the server runs."""
    if (path / "task.toml").is_file():
        return {path.resolve().name: path.resolve()}
    # Compared with the listed names, so that no name leads out of the directory.
    return {task.name: task for task in find_tasks([path]) if task.name == name}


def _source(dataset: DatasetSettings) -> str:
    if dataset.git is not None:
        return f"git+{dataset.git}"
    version = f"@{dataset.dataset_version}" if dataset.dataset_version else ""
    return f"{dataset.dataset_name}{version}"
