"""Probable mistakes of a task's author are warned of by name, once."""

import logging
from pathlib import Path

import pytest

from harbor_gym.episode.task import load_task
from harbor_gym.tasks.oddities import find_oddities
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task


async def test_windows_line_ends_and_unknown_tables_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = write_task(tmp_path / "task", toml="[enviroment]\ncpus = 2\n[notes]\na = 1\n[metadata]\nb = 1\n")
    script = task / "tests/test.sh"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    about_tables, about_script = find_oddities(task)
    assert about_tables.startswith(f"{task / 'task.toml'}: Harbor reads no [enviroment] and [notes]: ")
    assert about_script.startswith(f"{script} has Windows line ends (CRLF)")
    for _ in range(2):
        await load_task(task)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warned] == [about_tables, about_script]


@pytest.mark.parametrize("task", sorted(path.parent for path in (ROOT / "tasks").glob("*/task.toml")), ids=str)
def test_the_tasks_that_are_shipped_have_none(task: Path) -> None:
    assert find_oddities(task) == ()
