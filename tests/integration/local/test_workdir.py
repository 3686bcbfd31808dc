"""The sandbox option ``workdir``: behind the task's own, before the image's."""

from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import TaskError
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.mark.parametrize(
    ("toml", "command", "expected"),
    [
        ("", None, "/srv/given"),
        ("", "touch /srv/given/prepared", "/srv/given"),
        ('[environment]\nworkdir = "/srv/own"\n', None, "/srv/own"),
    ],
)
async def test_where_the_shell_opens(toml: str, command: str | None, expected: str, tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task", toml=toml, dockerfile=f"FROM {BASE}\nWORKDIR /srv/own\nWORKDIR /srv\n")
    options = {"workdir": "/srv/given"}
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", sandbox_options=options, setup_command=command)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        seen = (await env.step([("pwd; ls\n", 30.0)])).observation
    assert f"\n{expected}\n" in f"\n{seen}"
    assert ("prepared" in seen) is (command is not None)


async def test_a_relative_one_is_refused(task_dir: Path) -> None:
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", sandbox_options={"workdir": "srv"})
    with pytest.raises(TaskError, match="no absolute path"):
        await AsyncTerminalGymEnv(config).reset()
