"""Signals at any time, and warnings that are made errors: no traceback, and the status that shells know."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

ENTRY = ROOT / "harbor_gym/cli/entry.py"

# Sends the signal to itself as soon as the command imports a module, however long that takes on this machine.
INTERRUPTED = """\
import importlib.abc, runpy, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["harbor-gym", *{words!r}]
runpy.run_path({entry!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("harbor_gym", ["--version"]),
        ("harbor_gym.adapters.gymnasium.registration", ["--version"]),
        ("asyncio", ["--version"]),
        ("typer", ["--version"]),
        ("harbor_gym.cli.main", ["--version"]),
        ("harbor_gym.cli.recipes.evaluate", ["eval", "--help"]),
        ("harbor.models.task.task", ["check", "nowhere"]),
    ],
)
def test_ctrl_c_while_it_is_importing_ends_it_without_a_traceback(module: str, words: list[str]) -> None:
    code = INTERRUPTED.format(module=module, words=words, entry=str(ENTRY))
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (130, "", 1), done.stderr
    assert done.stderr.startswith("interrupted")


@pytest.mark.parametrize("module", ["asyncio", "typer", "harbor_gym.cli.main"])
def test_ctrl_c_while_python_m_is_importing_ends_it_without_a_traceback(module: str, tmp_path: Path) -> None:
    # A module of this name is imported by the interpreter itself, before it reads its command line.
    code = INTERRUPTED.partition("sys.argv = ")[0].format(module=module)
    (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    words = [sys.executable, "-m", "harbor_gym", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted before anything was started\n"


def test_warnings_that_are_errors_end_no_episode() -> None:
    words = [sys.executable, "-W", "error", "-m", "harbor_gym", "demo", "--env", "fake"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


A_USERS_TEST = """\
import pytest
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.testing import write_tiny_task

@pytest.mark.parametrize("number", range(2))
def test_an_episode(number, tmp_path):
    import asyncio

    async def play():
        task = write_tiny_task(tmp_path / "task")
        config = TerminalEnvConfig(task_dir=task, sandbox="harbor_gym.testing:FakeEnvironment")
        async with AsyncTerminalGymEnv(config) as env:
            await env.reset()
            return (await env.finish()).done

    assert asyncio.run(play())
"""


def test_episodes_pass_in_a_users_tests_where_warnings_are_errors(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(A_USERS_TEST, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
