"""A task's instruction before any sandbox: the same text that an episode begins with."""

from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TaskError
from harbor_gym.tasks import read_instruction, resolve_tasks
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config

CANARY = "<!-- harbor-canary GUID 1234 -->\n# canary: do not train\n\n"


async def test_it_is_what_reset_shows(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task")
    (tmp_path / "task/instruction.md").write_text(f"{CANARY}Write é.\n\n  Twice. \n")
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
    assert read_instruction(tmp_path / "task") == info.get("instruction") == "Write é.\n\n  Twice. \n"
    (resolved,) = await resolve_tasks([tmp_path / "task"])
    assert read_instruction(resolved) == read_instruction(str(tmp_path / "task"))


async def test_each_step_has_its_own(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", steps=2)
    async with AsyncTerminalGymEnv(config) as env:
        _, first = await env.reset()
        second = (await env.step(COMPLETE)).info
    assert read_instruction(tmp_path / "task") == first.get("instruction")
    assert read_instruction(tmp_path / "task", step=2) == second.get("instruction") == "Do step-2.\n"
    for step in (0, 3):
        with pytest.raises(TaskError, match=f"no step {step}; it has 2"):
            read_instruction(tmp_path / "task", step=step)


@pytest.mark.parametrize("broken", ["task.toml", "instruction.md"])
def test_a_broken_task_is_named(tmp_path: Path, broken: str) -> None:
    fake_config(tmp_path / "task")
    (tmp_path / "task" / broken).unlink()
    with pytest.raises(TaskError, match="task"):
        read_instruction(tmp_path / "task")


def test_a_task_without_steps_has_one_phase(tmp_path: Path) -> None:
    fake_config(tmp_path / "task")
    with pytest.raises(TaskError, match="no step 2; it has one phase"):
        read_instruction(tmp_path / "task", step=2)
