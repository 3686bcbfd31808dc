"""Write datasets for SkyRL: a JSON line per task."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.portal import get_portal
from harbor_gym.errors import UsageError
from harbor_gym.tasks import SourcedTask, TaskSource, read_instruction, resolve_tasks
from harbor_gym.tasks.receipts import audited_tasks
from harbor_gym.types import Severity

ENV_ID = "harbor"
"""The environment that a row names; :class:`.HarborTerminalGenerator` plays all rows, and needs none of that name."""


def write_dataset(
    tasks: TaskSource | Sequence[TaskSource],
    path: StrPath,
    *,
    data_source: str = "harbor",
    min_rows: int = 1,
    require_audit: StrPath | None = None,
    refused_findings: Severity = Severity.ERROR,
) -> Path:
    """Write a suite of tasks as a dataset for ``data.train_data`` or ``data.val_data``. Blocks.

    A row has ``prompt`` (the instruction as the user's message, for SkyRL's check of lengths), ``env_class``,
    ``data_source``, and, for ``env_extras``, ``task_dir`` and ``task``.

    Args:
        tasks: Directories of tasks, or other sources of :func:`harbor_gym.tasks.resolve_tasks`.
        path: The file, which is replaced; its name ends with ``.jsonl``.
        data_source: The name under which SkyRL reports an evaluation of these tasks.
        min_rows: The suite is repeated to at least this number of rows. SkyRL makes a group of each row, and refuses
            fewer rows than groups in a batch.
        require_audit: Folder of a harbor-gym audit: tasks without a receipt there of their present files are left out.
        refused_findings: With it, leave out tasks with a finding as bad as this, too.

    Returns:
        The path.

    Raises:
        UsageError: The name does not end with ``.jsonl``, ``min_rows`` is not positive, or no audited task is left.
        TaskError: A directory is not a usable Harbor task.
    """
    target = Path(path)
    if target.suffix != ".jsonl":
        raise UsageError(f"SkyRL recognises a dataset by its name: {target.name} must end with .jsonl")
    if min_rows < 1:
        raise UsageError(f"min_rows must be at least 1, got {min_rows}")
    found = get_portal().call(resolve_tasks, tasks)
    found = audited_tasks(found, require_audit, refused=refused_findings)
    rows = [_row(task, data_source) for task in found]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows) * math.ceil(min_rows / len(rows)), encoding="utf-8"
    )
    return target


def _row(task: SourcedTask, data_source: str) -> dict[str, object]:
    return {
        "prompt": [{"role": "user", "content": read_instruction(task)}],
        "env_class": ENV_ID,
        "data_source": data_source,
        "task_dir": str(task.path.resolve()),
        "task": task.name,
    }
