"""The command before Prime-RL's: its inputs, its refusals, and the program it starts. verifiers is not needed."""

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from harbor_gym.adapters.verifiers.prime_rl import (
    check_run,
    command,
    harbor_sources,
    prime_rl_version,
    read_config,
    read_env_file,
)
from harbor_gym.errors import MissingDependencyError, UsageError
from tests.helpers.paths import ROOT

RECIPES = ROOT / "recipes/prime_rl"


@pytest.mark.parametrize("name", ["qwen3_8b_docker", "qwen3_8b_modal", "tiny_cpu"])
def test_the_recipes_train_on_harbor_tasks_that_are_here(name: str) -> None:
    settings = read_config(RECIPES / f"{name}.toml")
    sources = harbor_sources(settings)
    assert "train" in {split for split, _ in sources}
    for _, source in sources:
        assert all((ROOT / task).is_dir() for task in source["env"]["taskset"]["tasks"])
        assert "step_rewards" not in source["env"]["agent"]["harness"]["terminal_env"]
    assert settings["orchestrator"]["renderer"] == {"name": "qwen3", "thinking_retention": "all"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_steps = 1\n", "env.taskset.id = 'harbor-gym-verifiers'"),
        ("[[orchestrator.train.source]]\nenv.taskset.id = 'gsm8k'\n", "env.taskset.id = 'harbor-gym-verifiers'"),
        ("max_steps =\n", "can't be read as TOML"),
    ],
)
def test_a_configuration_without_harbor_tasks_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words.replace("[", r"\[")):
        list(check_run(path))


def test_a_missing_file_names_an_example(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qwen3_8b_docker"):
        read_config(tmp_path / "none.toml")


def test_an_environment_file(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# keys\n\nexport WANDB_API_KEY=abc=\nNAME='two words'\nEMPTY=\n")
    assert read_env_file(path) == {"WANDB_API_KEY": "abc=", "NAME": "two words", "EMPTY": ""}
    for line in ("WANDB_API_KEY abc", "WANDB_API_KEY", "=abc"):
        path.write_text(f"NAME=value\n{line}\n")
        with pytest.raises(UsageError, match="line 2: expected NAME=value"):
            read_env_file(path)


def make_program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_rl_is_found_on_the_path_and_gets_the_other_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="Prime-RL's environment"):
        command(Path("x.toml"))
    rl = make_program(tmp_path, "rl", "true")
    assert command(Path("x.toml"), ["--max-steps", "3"]) == [str(rl), "@", "x.toml", "--max-steps", "3"]


@pytest.mark.parametrize(("day", "is_ok"), [(date(2026, 8, 22), False), (date(2026, 8, 23), True)])
def test_an_older_prime_rl_is_refused(day: date, is_ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src/prime_rl"
    package.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    moment = f"{day}T12:00:00+00:00"
    dates = {**os.environ, "GIT_COMMITTER_DATE": moment, "GIT_AUTHOR_DATE": moment}
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True, env=dates)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "src")
    if is_ok:
        assert prime_rl_version() == f"checkout of {day}"
    else:
        with pytest.raises(MissingDependencyError, match=f"is of {day}, and one newer than 2026-08-22 is needed"):
            prime_rl_version()


def test_every_problem_is_shown_before_anything_starts(tmp_path: Path) -> None:
    config = tmp_path / "rl.toml"
    taskset = 'env.taskset = { id = "harbor-gym-verifiers", tasks = ["./none"] }'
    sources = (f'[[orchestrator.train.source]]\nname = "{name}"\n{taskset}\n' for name in ("mine", "another"))
    config.write_text("".join(sources))
    folder = tmp_path / "bin"
    make_program(folder, "rl", f"touch {tmp_path}/started")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    script = RECIPES / "train.py"
    done = subprocess.run(
        [sys.executable, script, "--config", config],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    for name in ("mine", "another"):
        assert f"problem tasks of train source '{name}'" in done.stderr
    assert not (tmp_path / "started").exists()
