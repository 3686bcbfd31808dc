"""Finding tasks and judging their rewards; no sandbox is started here."""

from pathlib import Path

import pytest
from harbor.models.trial.config import EnvironmentConfig

from harbor_gym.checking import TaskCheck, check_tasks, find_tasks
from harbor_gym.errors import UsageError
from tests.tasks import write_task


def test_a_task_directory_is_itself(tmp_path: Path) -> None:
    task = write_task(tmp_path / "one")
    assert find_tasks(task) == [task]


def test_a_directory_of_tasks_is_its_tasks_by_name(tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / name) for name in ("b", "a")]
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("not a task")
    assert find_tasks(tmp_path) == sorted(tasks)


@pytest.mark.parametrize("name", ["missing", "file", "empty"])
def test_a_path_without_tasks_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=name):
        find_tasks(tmp_path / name)


@pytest.mark.parametrize(
    ("oracle", "nop", "error", "ok"),
    [
        (1.0, 0.0, None, True),
        (1, 0, None, True),
        (0.0, 0.0, None, False),
        (1.0, 1.0, None, False),
        (0.5, 0.0, None, False),
        (1.0, 0.0, "nop: lost", False),
        (None, None, "oracle: lost", False),
        (1.0, None, None, False),
    ],
)
def test_ok_means_solvable_and_not_yet_solved(
    oracle: float | None, nop: float | None, error: str | None, ok: bool
) -> None:
    check = TaskCheck(task="t", path=Path("t"), oracle=oracle, nop=nop, seconds=1.0, error=error)
    assert check.ok is ok


BROKEN = {
    "no instruction": ("instruction.md", None, "instruction.md"),
    "no tests": ("tests/test.sh", None, "test"),
    "no solution": ("solution/solve.sh", None, "solution"),
    "bad toml": ("task.toml", "not toml [", "task.toml|toml|Expected"),
    "bad value": ("task.toml", '[verifier]\ntimeout_sec = "soon"\n', "timeout_sec"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_task_is_an_error_not_a_reward(tmp_path: Path, case: str) -> None:
    file, content, expected = BROKEN[case]
    task = write_task(tmp_path / "broken")
    if content is None:
        (task / file).unlink()
        if file != "instruction.md":
            (task / file).parent.rmdir()
    else:
        (task / file).write_text(content)
    environment = EnvironmentConfig(import_path="no.sandbox:IsNeeded")
    (check,) = [one async for one in check_tasks([task], environment=environment)]
    assert (check.oracle, check.nop, check.ok) == (None, None, False)
    assert check.error is not None
    assert any(word in check.error for word in expected.split("|")), check.error
