"""A suite of tasks in splits, for a server."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym._runtime.portal import get_portal
from harbor_gym.config import EpisodeConfig
from harbor_gym.errors import UsageError
from harbor_gym.tasks import SourcedTask, TaskSource, filter_tasks, read_instruction, resolve_tasks, split_tasks
from harbor_gym.tasks.receipts import playable_tasks

TRAIN, TEST = "train", "test"
"""Names of the splits, which are also OpenEnv's types of split."""


@dataclass(frozen=True)
class Choice:
    """One task of a suite."""

    split: str
    index: int
    """The task's index in the split, from 0."""

    task: SourcedTask


@dataclass(frozen=True)
class TaskSuite:
    """Tasks in splits. Make one with :meth:`resolve`."""

    splits: Mapping[str, Sequence[SourcedTask]]
    """The tasks of each split, in order; no split is empty."""

    instructions: Mapping[Path, str]
    """Each task's instruction by its directory."""

    @classmethod
    def resolve(
        cls,
        sources: TaskSource | Sequence[TaskSource],
        *,
        where: Sequence[str] = (),
        test_fraction: float = 0.0,
        test_tasks: Sequence[str] = (),
        seed: int = 0,
        episode: EpisodeConfig | None = None,
    ) -> "TaskSuite":
        """Find the tasks, fetch missing ones, and split them. Blocks.

        Args:
            sources: As :func:`harbor_gym.tasks.resolve_tasks` reads them.
            where: Conditions on task.toml, as :func:`harbor_gym.tasks.filter_tasks` reads them.
            test_fraction: Share of the tasks in the split ``test``.
            test_tasks: Names of the tasks in the split ``test`` instead.
            seed: Draws the fraction.
            episode: How they are played, whose ``require_audit`` leaves tasks out.

        Raises:
            UsageError: A source, a condition or a name is wrong, or no task is left.
            TaskError: A directory is not a usable Harbor task, or a source can't be reached.
        """
        tasks = filter_tasks(get_portal().call(resolve_tasks, sources), where)
        if episode is not None:
            tasks = playable_tasks(tasks, episode)
        if not tasks:
            raise UsageError("there is no task: name a directory, a git source or a registry's dataset")
        train, test = split_tasks(tasks, test_fraction=test_fraction, test_tasks=test_tasks, seed=seed)
        splits = {TRAIN: train, TEST: test} if test else {TRAIN: train}
        return cls(splits, {task.path: read_instruction(task) for task in tasks})

    def choose(self, split: object = None, index: object = None, task: object = None, seed: object = None) -> Choice:
        """Return one task.

        Args:
            split: The task's split; None is ``train``, or any split if ``task`` is given.
            index: The task's index in the split.
            task: The task's name, instead of ``index``.
            seed: Without both, chooses the task at ``seed`` modulo the number of tasks; None draws one at random.

        Raises:
            UsageError: There is no such split or task, or both an index and a name are given.
        """
        if task is not None:
            if index is not None:
                raise UsageError("a task is chosen by index or by name: give one of index and task")
            return self._named(split, task)
        name = TRAIN if split is None else str(split)
        tasks = self.tasks(name)
        if index is None:
            index = random.randrange(len(tasks)) if seed is None else _integer("seed", seed) % len(tasks)
        place = _integer("index", index)
        if not 0 <= place < len(tasks):
            raise UsageError(f"index must be from 0 to {len(tasks) - 1} in split {name!r}, got {place}")
        return Choice(name, place, tasks[place])

    def tasks(self, split: str) -> Sequence[SourcedTask]:
        """Return a split's tasks.

        Raises:
            UsageError: There is no such split.
        """
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}; there are {', '.join(self.splits)}")
        return self.splits[split]

    def describe(self, split: str, index: int) -> dict[str, Any]:
        """Return a task as OpenEnv's task API lists it.

        Raises:
            UsageError: There is no such task.
        """
        task = self.choose(split, index).task
        instruction = self.instructions[task.path]
        return {"id": task.name, "index": index, "split": split, "instruction": instruction, "digest": task.digest}

    def _named(self, split: object, name: object) -> Choice:
        among = list(self.splits) if split is None else [str(split)]
        for key in among:
            for index, task in enumerate(self.tasks(key)):
                if task.name == name:
                    return Choice(key, index, task)
        raise UsageError(f"no task of {' and '.join(among)} is called {name!r}")


def _integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be an integer, got {value!r}")
    return value
