"""A task's instruction, without a sandbox: for datasets whose rows begin with the prompt."""

from pathlib import Path

from harbor_gym._runtime.files import StrPath
from harbor_gym.errors import TaskError
from harbor_gym.tasks.links import require_own_files
from harbor_gym.tasks.resolve import SourcedTask


def read_instruction(task: StrPath | SourcedTask, *, step: int = 1) -> str:
    """Return a task's instruction from its files, without Harbor's canary lines. Reads small files; blocks.

    It equals ``info["instruction"]`` of ``reset``, except for text that needs the sandbox: the list of its skills, and
    the MCP servers' text.

    Args:
        task: The task's directory, or a task that :func:`harbor_gym.tasks.resolve_tasks` returned. Other sources than
            directories must be resolved first.
        step: Of a multi-step task, the step's number, from 1.

    Raises:
        TaskError: The directory is not a usable Harbor task, or has no such step.
    """
    from harbor.models.task.task import Task

    task_dir = task.path if isinstance(task, SourcedTask) else Path(task)
    require_own_files(task_dir)
    try:
        found = Task(task_dir)
        steps = found.config.steps or []
        if not 1 <= step <= max(len(steps), 1):
            raise TaskError(f"{task_dir} has no step {step}; it has {len(steps) or 'one phase and no steps'}")
        return found.step_instruction(steps[step - 1].name) if steps else found.instruction
    except (OSError, ValueError, RuntimeError) as exc:
        raise TaskError(f"{task_dir} is not a usable Harbor task: {exc}") from exc
