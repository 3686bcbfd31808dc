"""Sources of tasks (directories, git repositories, Harbor's registry), and the selection of tasks from them."""

from harbor_gym._runtime.shipped import resolve_shipped as task_path
from harbor_gym._runtime.shipped import shipped_tasks
from harbor_gym.tasks.directories import find_tasks
from harbor_gym.tasks.instructions import read_instruction
from harbor_gym.tasks.order import TaskOrder
from harbor_gym.tasks.resolve import SourcedTask, TaskSource, resolve_tasks
from harbor_gym.tasks.selection import filter_tasks, split_tasks
from harbor_gym.tasks.specs import DirectorySpec, GitSpec, RegistrySpec, parse_spec

__all__ = [
    "DirectorySpec",
    "GitSpec",
    "RegistrySpec",
    "SourcedTask",
    "TaskOrder",
    "TaskSource",
    "filter_tasks",
    "find_tasks",
    "parse_spec",
    "read_instruction",
    "resolve_tasks",
    "shipped_tasks",
    "split_tasks",
    "task_path",
]
