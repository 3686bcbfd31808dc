"""recipes/train.py as a person runs it: bad flags end at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.recipe_runs import expect_refused, run_recipe

TASK = ROOT / "tasks" / "devops_task"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--task-dir", "nowhere"], "nowhere"),
        (["--task-dir", str(ROOT / "tests")], "task.toml"),
        (["--task-dir", str(TASK), "--env", "dokcer"], "docker"),
        (["--task-dir", str(TASK), "--env", "daytona"], "DAYTONA_API_KEY"),
        (["--task-dir", str(TASK), "--env", "docker"], "docker"),
        (["--task-dir", str(TASK), "--env", "tests.nothing:Here"], "tests.nothing"),
        (["--task-dir", str(TASK), "--sandbox-option", "network"], "NAME=VALUE"),
        (["--task-dir", str(TASK), "--verify-paths", "app"], "--verify-paths"),
        ([], "--task-dir"),
        (["--task", f"git+file://{ROOT}/tests#nothing"], "tests"),
        (["--task-dir", str(TASK), "--groups-per-batch", "3", "--stream-minibatches", "2"], "--stream-minibatches"),
        (
            ["--task-dir", str(TASK), "--observation-loss-weight", "0.05", "--stream-minibatches", "1"],
            "--stream-minibatches",
        ),
        (["--task-dir", str(TASK), "--observation-loss-weight", "0.05", "--loss-fn", "gspo"], "not gspo"),
        (["--task-dir", str(TASK), "--branch", "4"], "SIZE@mid"),
        (["--task-dir", str(TASK), "--branch", "3@mid"], "families of 3"),
        (["--task-dir", str(TASK), "--branch", "4@mid", "--agent", "terminus-2"], "--branch"),
        (["--task-dir", str(TASK), "--branch", "4@mid", "--over-sample", "1.25"], "--over-sample"),
        (["--task-dir", str(TASK), "--over-sample", "0.5"], "--over-sample"),
        (["--task-dir", str(TASK), "--batch-deadline", "0"], "--batch-deadline"),
        (["--task-dir", str(TASK.parent), "--remove-constant-groups"], "--max-steps-off-policy"),
        (["--task-dir", str(TASK), "--agent", "terminus2"], "terminus-2"),
        (["--task-dir", str(TASK), "--agent", "terminus-2", "--warm-sandboxes", "2"], "--warm-sandboxes"),
        (
            ["--task-dir", str(TASK), "--agent", "terminus-2", "--setup-command", "true"],
            "--setup-command: for our own loop",
        ),
        (["--task-dir", str(TASK), "--agent", "claude-code", "--backend", "local"], "--model-name"),
        (["--task-dir", str(TASK), "--agent", "tests.helpers.gateway.format_agent:FormatAgent"], "{gateway_url}"),
        (["--task-dir", str(TASK), "--agent-option", "base_url={gateway_url}"], "--agent"),
        (["--task-dir", str(TASK), "--load-checkpoint-path", "runs/x"], "begins with tinker://"),
        (
            ["--task-dir", str(TASK), "--kl-penalty-coef", "1", "--kl-reference-checkpoint", "runs/teacher"],
            "--kl-reference-checkpoint runs/teacher is no address of weights",
        ),
        (["--task-dir", str(TASK), "--kl-reference-model", "a/b"], "need a --kl-penalty-coef above 0"),
        (
            ["--task-dir", str(TASK), "--backend", "local", "--kl-penalty-coef", "1", "--kl-reference-model", "a/b"],
            "--kl-reference-model is for --backend tinker",
        ),
        (["--task-dir", str(TASK), "--start-from", str(ROOT / "pyproject.toml")], "pyproject.toml"),
    ],
)
def test_what_can_not_work_is_one_line_and_exit_code_2(arguments: list[str], expected: str, tmp_path: Path) -> None:
    log_path = tmp_path / "run"
    # An address where no daemon listens: the same as no Docker.
    env = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    expect_refused(run_recipe("train", *arguments, "--log-path", str(log_path), env=env), expected)
    assert not log_path.exists(), "nothing may be started or made"


@pytest.mark.server
@pytest.mark.parametrize(
    ("task", "arguments", "expected"),
    [
        ("devops_task", ["--renderer-name", "qwen4"], "renderer_name 'qwen4'"),
        ("sensor_console", [], "devops_task/README.md explains the format"),
        ("devops_task", ["--model-name", "no-such-folder"], "no-such-folder has no config.json"),
        ("devops_task", ["--demonstrations", "3"], "--demonstrations fine-tunes a named model of --backend local"),
        ("devops_task", ["--model-name", "{model}", "--renderer-name", "qwen4"], "renderer_name 'qwen4'"),
    ],
)
def test_a_policy_that_cannot_be_driven_is_refused_before_anything_is_made(
    task: str, arguments: list[str], expected: str, policies: Path, tmp_path: Path
) -> None:
    require_engine("tinker")
    arguments = [argument.format(model=policies / "random") for argument in arguments]
    log_path = tmp_path / "run"
    sandbox = "tests.helpers.sandboxes.judged:Judged"
    flags = ("--task-dir", str(TASK.parent / task), "--env", sandbox, "--backend", "local")
    expect_refused(run_recipe("train", *flags, *arguments, "--log-path", str(log_path)), expected)
    assert not log_path.exists()


@pytest.mark.server
def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    require_engine("server")
    require_engine("tinker")
    (tmp_path / "taken").touch()
    flags = ("--task-dir", str(TASK), "--env", "tests.helpers.sandboxes.judged:Judged", "--backend", "local")
    expect_refused(run_recipe("train", *flags, "--log-path", str(tmp_path / "taken" / "run")), "run's folder")


@pytest.mark.parametrize(
    "flag",
    [
        *("--learning-rate", "--max-tokens", "--max-context-tokens", "--max-turns", "--num-batches", "--epochs"),
        *("--group-size", "--groups-per-batch", "--lora-rank", "--test-episodes", "--stream-minibatches"),
        *("--rollout-workers", "--time-limit-sec", "--max-consecutive-parse-failures", "--stop-timeout-sec"),
    ],
)
def test_a_zero_that_means_nothing_is_refused_and_never_the_default(flag: str, tmp_path: Path) -> None:
    expect_refused(run_recipe("train", "--task-dir", str(TASK), flag, "0", "--log-path", str(tmp_path / "run")), flag)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["nan", "inf", "-1e-3"])
def test_a_learning_rate_is_a_positive_number(value: str) -> None:
    expect_refused(run_recipe("train", "--task-dir", str(TASK), "--learning-rate", value), "--learning-rate")


def test_as_a_program_too_it_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    flags = ("--task-dir", TASK, "--env", "dokcer", "--log-path", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, ROOT / "recipes/train.py", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean docker" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_key_for_the_service_is_named(tmp_path: Path) -> None:
    require_engine("local")
    done = run_recipe("train", "--task-dir", str(TASK), "--env", "local", "--log-path", str(tmp_path / "run"))
    expect_refused(done, "TINKER_API_KEY")
    assert "--backend local" in done.stderr


def test_an_existing_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    require_engine("local")
    arguments = ("--task-dir", str(TASK), "--env", "local", "--backend", "local", "--log-path", str(tmp_path))
    for extra in ((), ("--log-dir-exists", "raise")):
        done = run_recipe("train", *arguments, *extra)
        assert done.exit_code == 2
        assert str(tmp_path) in done.stderr
    other = {"format": 1, "tasks": [{"name": TASK.name, "digest": "sha256:another"}], "test_tasks": []}
    (tmp_path / "tasks.json").write_text(json.dumps(other))
    done = run_recipe("train", *arguments, "--log-dir-exists", "resume")
    assert done.exit_code == 2
    assert "other tasks" in done.stderr
    assert "sha256:another" in done.stderr


def test_help_lists_every_flag_of_the_documented_command() -> None:
    shown = run_recipe("train", "--help", env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).stdout
    documented = (
        *("task-dir", "env", "model-name", "renderer-name", "max-tokens", "temperature", "groups-per-batch"),
        *("group-size", "num-batches", "learning-rate", "lora-rank", "save-every", "log-path"),
        *("base-url", "backend", "eval-every", "max-turns", "loss-fn", "wandb-project"),
        *("load-checkpoint-path", "seed", "log-dir-exists", "task", "where", "test-fraction", "epochs"),
        *("max-rollout-retries", "max-steps-off-policy", "stream-minibatches", "remove-constant-groups"),
        *("zero-reward-on-limit", "kl-penalty-coef"),
    )
    assert [flag for flag in documented if f"--{flag}" not in shown] == []
