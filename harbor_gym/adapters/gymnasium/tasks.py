"""The tasks of an environment by name, and the choice of an episode's task."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.portal import get_portal
from harbor_gym.config import EpisodeConfig
from harbor_gym.errors import UsageError
from harbor_gym.tasks import find_tasks, resolve_tasks, task_path
from harbor_gym.tasks.receipts import playable_tasks


class TaskSet:
    """Task directories by name.

    Args:
        task_dir: One task.
        task_dirs: Several tasks, or a directory of tasks. Give exactly one of the two arguments.

    Raises:
        UsageError: Both or no arguments are given, there is no task, or two tasks have the same directory name.
    """

    def __init__(self, task_dir: StrPath | None, task_dirs: StrPath | Sequence[StrPath] | None) -> None:
        if (task_dir is None) == (task_dirs is None):
            raise UsageError("give either task_dir (one task) or task_dirs (several, or a directory of tasks)")
        if task_dir is not None:
            paths = [Path(task_dir)]  # not checked here: the first reset reports a wrong task
        elif isinstance(task_dirs, str | os.PathLike):
            paths = find_tasks([Path(task_dirs)])
        else:
            paths = [Path(path) for path in task_dirs or ()]
        paths = [task_path(path) for path in paths]
        self._paths = {path.resolve().name: path for path in paths}
        if not paths or len(self._paths) < len(paths):
            raise UsageError(f"task_dirs must be tasks with different directory names, got {[str(p) for p in paths]}")

    def require_audit(self, config: EpisodeConfig) -> None:
        """Leave out what the configuration's ``require_audit`` refuses, if there are several tasks. Blocks.

        Raises:
            UsageError: No task is left, or there is no audit.
        """
        if config.require_audit is not None and len(self._paths) > 1:
            found = get_portal().call(resolve_tasks, list(self._paths.values()))
            kept = {task.path for task in playable_tasks(found, config)}
            self._paths = {name: path for name, path in self._paths.items() if path.resolve() in kept}

    @property
    def first(self) -> Path:
        """The first task's directory."""
        return next(iter(self._paths.values()))

    @property
    def longest_instruction_bytes(self) -> int:
        """Size of the longest instruction of any task or step, in bytes."""
        files = (file for path in self._paths.values() for file in path.rglob("instruction.md"))
        return max((file.stat().st_size for file in files), default=0)

    def choose(self, options: Mapping[str, Any] | None, random: np.random.Generator) -> Path:
        """Return the task that ``options["task"]`` names, or else a random one.

        Args:
            options: The options of ``reset``.
            random: Used only if there are several tasks.

        Raises:
            UsageError: There is no such task, or an option is unknown.
        """
        unknown = sorted(set(options or ()) - {"task"})
        if unknown:
            raise UsageError(f"reset knows the option 'task', got {', '.join(unknown)}")
        if options is not None and options.get("task") is not None:
            name = str(options["task"])
            if name not in self._paths:
                raise UsageError(f"no task is called {name!r}; this environment has: {', '.join(self._paths)}")
            return self._paths[name]
        if len(self._paths) == 1:
            return self.first
        return list(self._paths.values())[int(random.integers(len(self._paths)))]
