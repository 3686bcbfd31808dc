"""Where tasks come from, and which of them to take: directories, git repositories, Harbor's registry."""

from harbor_gym.task_sources.directories import find_tasks
from harbor_gym.task_sources.order import TaskOrder
from harbor_gym.task_sources.resolve import SourcedTask, resolve_tasks
from harbor_gym.task_sources.selection import filter_tasks, split_tasks
from harbor_gym.task_sources.specs import DirectorySpec, GitSpec, RegistrySpec, parse_spec

__all__ = [
    "DirectorySpec",
    "GitSpec",
    "RegistrySpec",
    "SourcedTask",
    "TaskOrder",
    "filter_tasks",
    "find_tasks",
    "parse_spec",
    "resolve_tasks",
    "split_tasks",
]
