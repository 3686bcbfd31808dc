"""A task is read again if, and only if, one of its files has changed."""

import asyncio
from pathlib import Path

import pytest

from harbor_gym.episode.task import load_task
from harbor_gym.errors import TaskError
from harbor_gym.testing import write_tiny_task


async def test_a_task_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    task_dir = write_tiny_task(tmp_path / "task")
    await asyncio.sleep(0.2)  # a younger change could be followed by another of the same time
    task = await load_task(task_dir)
    assert await load_task(task_dir) is task
    (task_dir / "instruction.md").write_text("Do something else.", encoding="utf-8")
    assert (await load_task(task_dir)).instruction == "Do something else."
    (task_dir / "tests" / "out").symlink_to(tmp_path)
    with pytest.raises(TaskError, match="outside the task directory"):
        await load_task(task_dir)
