"""recipes/sweep.py as a person runs it. A stand-in for the training writes the cookbook's files in no time."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import Result

from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recipe_runs import expect_refused, run_recipe

TASK = ROOT / "tasks" / "devops_task"

STAND_IN = """\
import json, pathlib, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, seed = pathlib.Path(flags["--log-path"]), int(flags["--seed"])
folder.mkdir(exist_ok=True)
with (folder / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
rate = float(flags["--learning-rate"])
(folder / "config.json").write_text(json.dumps({"learning_rate": rate}))
record = {"env/all/reward/total": rate * 100, "env/all/turns_per_episode": 7 - seed}
with (folder / "metrics.jsonl").open("a") as metrics:
    metrics.writelines(json.dumps({"step": step, **record}) + "\\n" for step in range(2))
try:
    print("batch 2/2  reward", rate * 100, flush=True)
    hangs = (folder.parent / "hang").exists()
    while hangs:  # a signal that comes just before a sleep does not shorten it
        time.sleep(0.05)
except KeyboardInterrupt:
    (folder / "interrupted").touch()
    sys.exit(130)
if (folder.parent / "break").exists() and seed == 1:
    sys.exit("the server went away")
(folder / "checkpoints.jsonl").write_text(json.dumps({"name": "final", "final": True}) + "\\n")
"""

RUN_IT = """\
import sys
from harbor_gym.cli.main import main
from harbor_gym.cli.results import sweep

sweep.TRAIN = (sys.executable, {trainer!r})
main()
"""


def sweep(*arguments: str) -> Result:
    return run_recipe("sweep", "--task-dir", str(TASK), *arguments)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the training, which a sweep in this process starts."""
    path = tmp_path / "trainer.py"
    path.write_text(STAND_IN)
    monkeypatch.setattr("harbor_gym.cli.results.sweep.TRAIN", (sys.executable, str(path)))
    return path


@pytest.mark.usefixtures("trainer")
@pytest.mark.parametrize(
    ("flags", "project"),
    [(["--track", "mlflow"], "sweep"), (["--track", "mlflow", "--track-project", "p"], "p"), ([], None)],
)
def test_the_runs_of_a_sweep_are_one_project_in_a_tracker(
    flags: list[str], project: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    done = sweep("--learning-rates", "1e-3", "--seeds", "0", "--output", str(folder), *flags)
    assert done.exit_code == 0, done.output
    words = (folder / "lr_0.001_seed_0" / "calls").read_text().split()
    assert words.count("--track-project") == (project is not None)
    assert project is None or words[words.index("--track-project") + 1] == project


@pytest.mark.usefixtures("trainer")
def test_a_sweep_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "break").touch()
    grid = ("--learning-rates", "1e-3,1e-4", "--seeds", "0,1", "--parallel", "2", "--sweep-path", str(folder))
    first = sweep(*grid, "--num-batches", "2")
    assert first.exit_code == 1, first.stderr
    assert "4 runs to train, 0 finished already" in first.stdout
    assert first.stderr.count("ended with exit code 1") == 2
    assert "lr_0.001_seed_1" in first.stderr
    assert "the server went away" in first.stderr
    (folder / "break").unlink()
    (folder / "lr_0.0001_seed_0" / "checkpoints.jsonl").write_text('{"name": "000001"}\n')

    second = sweep(*grid, "--num-batches", "2")
    assert second.exit_code == 0, second.stderr
    assert "3 runs to train, 1 finished already" in second.stdout
    calls = {run.name: (run / "calls").read_text().splitlines() for run in folder.glob("lr_*") if run.is_dir()}
    assert {name: len(lines) for name, lines in calls.items()} == {
        "lr_0.001_seed_0": 1,
        "lr_0.001_seed_1": 2,
        "lr_0.0001_seed_0": 2,
        "lr_0.0001_seed_1": 2,
    }
    assert calls["lr_0.001_seed_1"][1].endswith("--log-dir-exists resume")
    assert "--num-batches 2" in calls["lr_0.001_seed_1"][1]
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in second.stdout.splitlines() if line[0] == "|"]
    assert rows[2:] == [
        ["0.001", "seed 0", "2", "0.10"],
        ["0.001", "seed 1", "2", "0.10"],
        ["0.001", "mean", "", "0.10"],
        ["0.0001", "seed 0", "2", "0.01"],
        ["0.0001", "seed 1", "2", "0.01"],
        ["0.0001", "mean", "", "0.01"],
    ]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    grown = json.loads((folder / "sweep.json").read_text())
    assert (grown["learning_rates"], grown["seeds"]) == ([1e-3, 1e-4], [0, 1])

    other = sweep(*grid, "--num-batches", "3")
    assert other.exit_code == 2
    assert "a sweep with other flags" in other.stderr


def test_an_interrupted_sweep_interrupts_its_runs_and_waits_for_them(trainer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "hang").touch()
    code = RUN_IT.format(trainer=str(trainer))
    flags = ("--task-dir", TASK, "--learning-rates", "1e-3", "--seeds", "0", "--sweep-path", folder)
    command = [sys.executable, "-c", code, "sweep", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("lr_0.001_seed_0  batch 2/2"):
        assert process.poll() is None, process.stderr
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SEC)
    assert process.returncode == 130, errors
    log = folder / "lr_0.001_seed_0.log"
    assert (folder / "lr_0.001_seed_0" / "interrupted").exists(), f"it was killed, or logged why not: {log.read_text()}"


def test_flags_that_training_refuses_end_the_sweep_at_once_and_can_be_corrected(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    grid = ("--learning-rates", "1e-3,1e-4", "--seeds", "0,1", "--sweep-path", str(tmp_path / "sweep"))
    refused = sweep(*grid, "--env", "dokcer")
    assert refused.exit_code == 2
    assert refused.stdout == "4 runs to train, 0 finished already\n"
    assert re.fullmatch(r"error: .*dokcer.* docker.*\n", refused.stderr)
    request.getfixturevalue("trainer")
    corrected = sweep(*grid, "--env", "docker")
    assert corrected.exit_code == 0, corrected.stderr


@pytest.mark.usefixtures("trainer")
def test_the_task_is_named_without_a_flag_before_those_of_the_training(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    grid = ("--learning-rates", "1e-3", "--seeds", "0", "-o", str(folder))
    done = run_recipe("sweep", *grid, str(TASK), "--group-size", "4")
    assert done.exit_code == 0, done.stderr
    assert f"--task-dir {TASK} --group-size 4" in (folder / "lr_0.001_seed_0" / "calls").read_text()
    expect_refused(run_recipe("sweep", *grid, "--group-size", "4", str(TASK)), "name the task before the flags")
    expect_refused(run_recipe("sweep", *grid), "name the task before the flags")


@pytest.mark.parametrize("record", ["{", "{}", "[]"])
def test_a_broken_record_of_a_sweep_is_one_line(record: str, tmp_path: Path) -> None:
    (tmp_path / "lr_1_seed_0").mkdir()
    (tmp_path / "sweep.json").write_text(record, encoding="utf-8")
    done = run_recipe("sweep", "--task-dir", str(TASK), "--sweep-path", str(tmp_path))
    expect_refused(done, f"{tmp_path / 'sweep.json'} can't be read: ")
    assert "choose another --output" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--learning-rates", "fast"), "expected numbers"),
        (("--seeds", ""), "at least one learning rate and one seed"),
        (("--seed", "3"), "--seed is for the sweep to set"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    done = run_recipe("sweep", "--task-dir", str(TASK), *arguments, "--sweep-path", str(tmp_path / "sweep"))
    expect_refused(done, expected)
    assert not (tmp_path / "sweep").exists()
