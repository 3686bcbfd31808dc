"""A newcomer's first commands: the demo, a task of their own, a task that is shipped, the server's environment."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harbor_gym import TerminalEnvConfig, UsageError
from harbor_gym._runtime import shipped
from harbor_gym.cli.main import app
from harbor_gym.embedded import interpreter
from harbor_gym.errors import MissingDependencyError
from harbor_gym.tasks import find_tasks, parse_spec, shipped_tasks, task_path
from harbor_gym.tasks.new import TaskKind, write_task
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC

SHIPPED = sorted(path.parent.name for path in (ROOT / "tasks").glob("*/task.toml"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shipped, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_the_demo_needs_no_engine() -> None:
    done = CliRunner().invoke(app, ["demo", "--env", "fake"])
    assert done.exit_code == 0, done.output
    assert "Write the word done into /srv/answer." in done.stdout
    assert "completed, reward 1," in done.stdout


def test_the_demo_reports_what_a_sandbox_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    done = CliRunner().invoke(app, ["demo", "--env", "docker"])
    assert done.exit_code == 0, done.output
    assert "2. Sandboxes of the kind docker can't be started here yet:" in done.stdout


@pytest.mark.local
@pytest.mark.slow
def test_the_demo_solves_a_task_in_a_real_sandbox() -> None:
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("completed, reward 1,") == 2


def test_play_outside_a_terminal_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harbor_gym", "play"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: play needs a terminal")
    assert len(done.stderr.splitlines()) == 1


def test_a_task_that_is_not_shipped_is_reported_without_a_settings_name() -> None:
    done = CliRunner().invoke(app, ["train", "--task-dir", "task:nope", "--backend", "local"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: no task 'task:nope' is shipped; there are task:devops_task")


def test_the_tasks_of_the_repository_are_shipped(cache: Path) -> None:
    assert shipped_tasks() == SHIPPED
    path = task_path("task:devops_task")
    assert path.is_relative_to(cache)
    ours = {file.relative_to(ROOT / "tasks/devops_task") for file in (ROOT / "tasks/devops_task").rglob("*.*")}
    assert {file.relative_to(path) for file in path.rglob("*.*")} == {
        file for file in ours if "__pycache__" not in file.parts
    }
    assert (path / "environment/app/appctl").stat().st_mode & 0o100
    assert find_tasks([Path("task:devops_task")]) == [path]
    assert parse_spec("task:devops_task") == parse_spec(path)
    assert TerminalEnvConfig(task_dir=Path("task:devops_task")).task_dir == path
    assert task_path("tasks/some") == Path("tasks/some")


def test_the_page_of_tasks_names_each_shipped_task() -> None:
    listed = (ROOT / "docs/guide/tasks.md").read_text(encoding="utf-8").split("are shipped: ", 1)[1].split(".", 1)[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == SHIPPED


def test_a_misspelt_task_is_named_with_those_there_are(cache: Path) -> None:
    with pytest.raises(UsageError, match="no task 'task:devops' is shipped; there are task:devops_task, "):
        task_path("task:devops")
    with pytest.raises(ValueError, match="no task 'task:devops' is shipped"):
        TerminalEnvConfig(task_dir=Path("task:devops"))


def test_what_an_installer_compiled_is_no_part_of_a_task(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "_source", lambda: tmp_path / "tasks")
    task = write_task(tmp_path / "tasks" / "mine")
    before = task_path("task:mine")
    (task / "tests" / "__pycache__").mkdir()
    (task / "tests" / "__pycache__" / "x.pyc").touch()
    shipped._copy.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert task_path("task:mine") == before
    assert not list(before.rglob("*.pyc"))
    (task / "instruction.md").write_text("Something else.\n")
    shipped._copy.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert task_path("task:mine") != before, "another version has another place"


@pytest.mark.parametrize("kind", TaskKind)
def test_a_new_task_is_whole(tmp_path: Path, kind: TaskKind) -> None:
    from harbor.models.task.task import Task

    folder = tmp_path / "my_task"
    done = CliRunner().invoke(app, ["init", str(folder), "--kind", kind.value, "--org", "me"])
    assert done.exit_code == 0, done.output
    task = Task(folder)
    assert task.config.task is not None
    assert task.config.task.name == "me/my-task"
    assert bool(task.config.steps) == (kind is TaskKind.STEPS)
    scripts = list(folder.rglob("*.sh"))
    assert len(scripts) >= 2
    for script in scripts:
        assert script.stat().st_mode & 0o100
        subprocess.run(["bash", "-n", str(script)], check=True)
    assert not [
        file for file in folder.rglob("*") if file.is_file() and "@" in file.read_text() and "@NAME" in file.read_text()
    ]


@pytest.mark.local
@pytest.mark.slow
def test_every_new_task_is_ok_to_check(tmp_path: Path) -> None:
    for kind in TaskKind:
        write_task(tmp_path / "tasks" / f"a-{kind.value}", kind)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "tasks"), "--repeat", "1"])
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0]: "ok" in row for row in rows} == {f"a-{kind.value}": True for kind in TaskKind}
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", ["Big", "with space", "ünï", "-x", 65 * "a"])
def test_a_name_that_can_be_no_tasks_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"can't be a task's name: .* 64 .* with a letter or a digit first"):
        write_task(tmp_path / name)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not empty"):
        write_task(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_without_skyrl_the_servers_environment_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(interpreter, "_is_importable", lambda name: False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(MissingDependencyError, match="run `harbor-gym server install`"):
        interpreter.server_python()
    made = interpreter.environment_dir() / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(sys.executable)
    with pytest.raises(MissingDependencyError):
        interpreter.server_python()  # half made
    (interpreter.environment_dir() / ".installed").touch()
    assert interpreter.server_python() == str(made)
    assert interpreter.install() == made
    assert [path.name for path in interpreter.remove()] == [made.parents[1].name]


def test_an_install_that_fails_reports_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "cache_dir", lambda: tmp_path)
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "no such package$PYTHONDONTWRITEBYTECODE" >&2\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", ", and nothing is compiled")
    with pytest.raises(interpreter.ServerInstallError, match=r"uv ended with exit code 3:\nno such package$"):
        interpreter.install()
    assert interpreter.installed_python() is None


def test_the_wheel_has_what_a_newcomer_needs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "uv",
        "build",
        "--wheel",
        "--no-build-isolation",
        "-q",
        "-o",
        tmp_path,
        ROOT,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SEC)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"harbor_gym/_tasks/{name}/task.toml" for name in SHIPPED} <= names
    for name in (
        "harbor_gym/tasks/templates/service/tests/test.sh",
        "harbor_gym/embedded/server_requirements.txt",
        "harbor_gym/report/static/detail.js",
        "harbor_gym/cli/results/view.py",
        "harbor_gym/py.typed",
    ):
        assert name in names
