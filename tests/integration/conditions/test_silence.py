"""Long work is announced: a line when it begins and one when it ends, however the command's output is read."""

import uuid
from pathlib import Path

from tests.helpers.engines import require_engine
from tests.helpers.tasks import BASE, write_task
from tests.integration.conditions.command import harbor_gym


def test_a_command_tells_that_it_builds_an_image(tmp_path: Path) -> None:
    require_engine("local")
    dockerfile = f"FROM {BASE}\nRUN echo {uuid.uuid4()}\nWORKDIR /srv\n"
    task = write_task(tmp_path / "task", dockerfile=dockerfile)
    done = harbor_gym("check", task, "--env", "local", "--repeat", "1", "--no-forge")
    assert done.returncode == 0, done.stderr
    name = f"building the image of {task}/environment"
    first, *_, last = (line for line in done.stderr.splitlines() if line.startswith(name))  # between them, one in 15 s
    assert first == name
    assert last.startswith(f"{name}: done after ")
    assert "building" not in done.stdout
