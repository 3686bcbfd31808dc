"""The console command: its output, its exit codes, and that misuse starts nothing."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym import __version__
from harbor_gym.cli.shared import one_line_errors
from harbor_gym.errors import MissingDependencyError, SandboxStartError, TaskError, TaskUnsupportedError, UsageError
from tests.helpers.recipe_runs import expect_refused, run_recipe
from tests.helpers.tasks import write_task
from tests.unit.tasks.test_task_sources import commit_all, git


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harbor_gym", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"harbor-gym {__version__}\n")


def test_the_console_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("harbor-gym")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


@pytest.mark.parametrize("arguments", [["init", "x"], ["check", "task:devops_task"], ["train", "task:devops_task"]])
def test_a_folder_that_is_gone_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    script = 'mkdir "$1/gone"; cd "$1/gone"; rmdir "$1/gone"; shift; exec "$@"'
    command = ["sh", "-c", script, "sh", str(tmp_path), sys.executable, "-m", "harbor_gym", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    gone = "error: the folder that this command was started in is gone: change to another one\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", gone)


def test_a_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "harbor_gym", "doctor", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "error: No space left on device on a disk, or where standard output goes to: free some space there\n"
    )


@pytest.mark.parametrize("arguments", [[], ["demo"], ["eval", "task"]])
def test_windows_is_refused_in_one_line(arguments: list[str]) -> None:
    code = "import sys; from harbor_gym.cli.entry import main; sys.platform = 'win32'; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("harbor-gym: ")
    assert done.stderr.endswith("WSL\n")
    assert done.stderr.count("\n") == 1


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("check", "cache", "server"))


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("doctr", "doctor")])
def test_a_misspelt_command_is_answered_with_the_one_that_is_meant(typed: str, meant: str) -> None:
    done = run_recipe(typed)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ["--no-such-flag"],
        ["eval", "--no-such-flag"],
        ["train", "--backend", "mine"],
        ["init", "x", "--kind", "mine"],
        ["train", "--resume"],
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_as_every_error(words: list[str]) -> None:
    done = run_recipe(*words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(" --help\n")
    assert "Value error" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", "{taken}/task"],
        ["sweep", "--task-dir", "task:devops_task", "--sweep-path", "{taken}/sweep"],
        ["report", "{run}", "--output", "{taken}/page.html"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    taken, run_dir = tmp_path / "taken", tmp_path / "run"
    taken.write_text("a file, where a folder would have to be")
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text('{"step": 0, "env/all/reward/total": 0.5}\n')
    done = run_recipe(*(argument.format(taken=taken, run=run_dir) for argument in arguments))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert str(taken) in done.stderr
    assert "Not a directory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing"], "missing is not a directory"),
        (["."], "holds no task.toml"),
        (["tiny", "--env", "dockr"], "did you mean docker"),
        (["tiny", "--env", "daytona"], "DAYTONA_API_KEY"),
        (["tiny", "--env", "docker"], "daemon is not running"),
        (["tiny", "--env", "no.such.module:Sandbox"], "no.such.module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_misuse_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "empty").mkdir()
    write_task(tmp_path / "empty" / "tiny")
    path = tmp_path if arguments[0] == "." else tmp_path / "empty" / arguments[0]
    done = run_recipe("check", str(path), *arguments[1:], env={"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    expect_refused(done, expected)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


# A sandbox class that refuses every task at construction: enough to see errors reported without any engine.
REFUSING = """
from harbor.environments.base import BaseEnvironment

class Refusing(BaseEnvironment):
    def __new__(cls, *args, **kwargs):
        raise ValueError("this sandbox takes no tasks")

    @classmethod
    def preflight(cls, kwargs=None):
        pass
"""


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "refusing_sandbox.py").write_text(REFUSING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "refusing_sandbox:Refusing"


def test_json_holds_one_object_per_task(tmp_path: Path, refusing: str) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    done = run("check", tmp_path / "tasks", "--env", refusing, "--json")
    assert done.returncode == 1, done
    rows = json.loads(done.stdout)
    assert [row["task"] for row in rows] == ["a", "b"]
    for row in rows:
        assert (row["oracle"], row["nop"], row["forged"], row["ok"]) == ([], [], None, False)
        assert row["verdict"] == "refused"
        assert "this sandbox takes no tasks" in row["reason"]
        assert row["seconds"] >= 0


def test_tasks_come_from_git_and_from_a_registry_too(tmp_path: Path, refusing: str) -> None:
    repository, here = tmp_path / "repository", write_task(tmp_path / "here/same")
    write_task(repository / "tasks/same")
    write_task(repository / "tasks/other")
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit = commit_all(repository, "first")
    listed = {"name": "l", "git_url": f"file://{repository}", "git_commit_id": commit, "path": "tasks/same"}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([{"name": "org/few", "version": "1.0", "description": "d", "tasks": [listed]}]))
    source = f"git+file://{repository}@{commit}#tasks/other"
    # Harbor's cache of downloads lies in the home directory.
    done = run(
        *("check", here, "--task", source, "--task", "org/few@1.0"),
        *("--registry-path", registry, "--env", refusing, "--json"),
        HOME=str(tmp_path / "home"),
    )
    rows = json.loads(done.stdout)
    assert [(row["task"], row["source"], row["commit"]) for row in rows] == [
        ("same", str(here), None),
        ("other", source, commit),
        ("same~2", "org/few@1.0", commit),
    ]
    assert all(row["verdict"] == "refused" for row in rows)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "nothing to check"),
        (["git+https://host/repo@main"], "as --task SOURCE"),
        (["org/name@1"], "as --task SOURCE"),
        (["--task", "a b"], "is no source of tasks"),
        (["--task", "org/name", "--registry-path", "absent.json"], "absent.json can't be read: it is not there"),
        (["--task", f"git+file:///does/not/exist@{'0' * 40}"], "can't fetch tasks of file:///does/not/exist"),
    ],
)
def test_a_source_that_gives_no_tasks_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    done = run_recipe("check", *arguments, "--env", "local", env={"HOME": str(tmp_path)})
    expect_refused(done, expected)
    assert done.stdout == ""


@pytest.mark.parametrize("error", ["ValueError", "TypeError"])
def test_a_refusal_is_shown_as_one_never_as_zero(tmp_path: Path, refusing: str, error: str) -> None:
    task = write_task(tmp_path / "tiny")
    (tmp_path / "refusing_sandbox.py").write_text(REFUSING.replace("ValueError", error))
    done = run("check", task, "--env", refusing)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split()[:3] == ["tiny", "-", "-"]
    assert done.stdout.splitlines()[1].endswith("refused")
    assert "this sandbox takes no tasks" in done.stderr
    assert done.stderr.count("\n") == 1


FAKE = ("--env", "harbor_gym.testing.fake.environment:FakeEnvironment")


@pytest.mark.parametrize(
    ("answer", "status", "verdict"), [("done", 3, "unproven"), ("", 1, "trivial")], ids=["unproven", "trivial"]
)
def test_a_task_without_a_solution_is_unproven_with_a_status_of_its_own(
    tmp_path: Path, answer: str, status: int, verdict: str
) -> None:
    task = write_task(tmp_path / "tiny")
    (task / "solution" / "solve.sh").unlink()
    (task / "solution").rmdir()
    wanted = json.dumps({"/srv/answer": answer} if answer else {})
    done = run("check", task, *FAKE, "--no-forge", "--sandbox-option", f"solved_when={wanted}")
    assert done.returncode == status, done
    assert done.stdout.splitlines()[1].endswith(verdict)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sandbox-option", "network"], "NAME=VALUE"),
        (["--reward-key", "a", "--reward-function", "min"], "exclude each other"),
        (["--reward-function", "median"], "known: mean"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_of_check_that_cannot_be_used_starts_nothing(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    done = run_recipe("check", str(write_task(tmp_path / "tiny")), *FAKE, *arguments)
    expect_refused(done, expected)
    assert done.stdout == ""


def test_nothing_is_kept_unless_asked(tmp_path: Path, refusing: str) -> None:
    task = write_task(tmp_path / "tiny")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run("check", task, "--env", refusing, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == []
    run("check", task, "--env", refusing, "--trials-dir", tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir())


def test_a_page_of_a_folder_that_is_no_run_is_served_with_a_remark(tmp_path: Path) -> None:
    arguments = (sys.executable, "-m", "harbor_gym", "view", tmp_path, "--port", "0")
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        remark = process.stderr.read()
    assert "http://127.0.0.1:" in shown
    assert f"{tmp_path} holds no run or evaluation: " in remark


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("wrong flag"), 2, "wrong flag"),
        (TaskError("no task.toml"), 2, "no task.toml"),
        (TaskUnsupportedError("wants a GPU"), 2, "wants a GPU"),
        (MissingDependencyError("install it"), 2, "install it"),
        (SandboxStartError("no room"), 1, "SandboxStartError: no room"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), 1, "a.txt: No such file: name one that is there"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_ends_every_command_with_one_status_and_one_line(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = type(error)(*error.args, *([error.filename] if isinstance(error, OSError) else []))
    error.add_note("a hint")
    if isinstance(error, SandboxStartError):
        error.attach({"exception": "Traceback (most recent call last):\n  …\nOSError: no room"}, trial_dir=None)
    hint = "" if isinstance(error, OSError) else "; a hint"
    with pytest.raises(SystemExit) as end, one_line_errors():
        raise error
    assert (end.value.code, capsys.readouterr().err) == (status, f"error: {line}{hint}\n")
