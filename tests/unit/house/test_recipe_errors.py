"""A recipe that is no command says what is wrong in one line, too, and prints no traceback after it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT


def run(recipe: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "recipes" / recipe), *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    if find_spec("verl") is not None:
        pytest.skip("verl is here")
    done = run("verl_dataset.py", "tasks", "--out", "train.parquet", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr == 'error: harbor_gym.adapters.verl needs verl: pip install "harbor-gym[verl]"\n'


def test_a_wrong_setting_of_skyrl_is_one_line(tmp_path: Path) -> None:
    if find_spec("skyrl") is None:
        pytest.skip('pip install "harbor-gym[skyrl]"')
    done = run("skyrl_grpo.py", "harbor.env.sandbox=nowhere", "harbor.env.max_turnips=3", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    assert "max_turnips" in last
    assert "Traceback" not in done.stderr
