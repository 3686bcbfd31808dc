"""Write datasets for verl: a parquet file with a row per task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.portal import get_portal
from harbor_gym.errors import UsageError
from harbor_gym.tasks import SourcedTask, TaskSource, read_instruction, resolve_tasks
from harbor_gym.tasks.receipts import audited_tasks
from harbor_gym.types import Severity

TERMINAL_LOOP = "harbor_terminal"
"""The name of :class:`HarborTerminalLoop` in ``recipes/verl_loops.yaml``."""


def write_dataset(
    tasks: TaskSource | Sequence[TaskSource],
    path: StrPath,
    *,
    agent_name: str = TERMINAL_LOOP,
    data_source: str = "harbor",
    require_audit: StrPath | None = None,
    refused_findings: Severity = Severity.ERROR,
) -> Path:
    """Write a suite of tasks as a dataset for ``data.train_files`` or ``data.val_files``. Blocks.

    A row has ``prompt`` (the instruction as the user's message, for verl's check of lengths), ``data_source``,
    ``agent_name``, ``reward_model`` (verl requires it; no reward manager runs) and ``extra_info`` with ``index``,
    ``task_dir`` and ``task``.

    Args:
        tasks: Sources of :func:`harbor_gym.tasks.resolve_tasks`: directories, ``org/name@ref``,
            ``git+URL@COMMIT#path``.
        path: The file, which is replaced; its name ends with ``.parquet``.
        agent_name: The name of the loop in the file at ``rollout.agent.agent_loop_config_path``.
        data_source: The name under which verl reports a validation of these tasks.
        require_audit: Folder of a harbor-gym audit: tasks without a receipt there of their present files are left out.
        refused_findings: With it, leave out tasks with a finding as bad as this, too.

    Returns:
        The path.

    Raises:
        UsageError: The name does not end with ``.parquet``, or no audited task is left.
        TaskError: A directory is not a usable Harbor task.
    """
    target = Path(path)
    if target.suffix != ".parquet":
        raise UsageError(f"verl recognises a dataset by its name: {target.name} must end with .parquet")
    found = get_portal().call(resolve_tasks, tasks)
    found = audited_tasks(found, require_audit, refused=refused_findings)
    rows = [_row(task, index, agent_name, data_source) for index, task in enumerate(found)]
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), target)
    return target


def _row(task: SourcedTask, index: int, agent_name: str, data_source: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": read_instruction(task)}],
        "data_source": data_source,
        "agent_name": agent_name,
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "task_dir": str(task.path.resolve()), "task": task.name},
    }
