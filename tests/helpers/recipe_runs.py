"""Commands run in this process: few tests need a process of their own for them."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harbor_gym.cli.main import app

SECRETS = ("TINKER_API_KEY", "DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN")


def run_recipe(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run a command without anybody's keys; its output, errors and exit code are the result's."""
    return CliRunner().invoke(app, [name, *arguments], env={**dict.fromkeys(SECRETS), **(env or {})})


def run_here(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with these variables on top of this process's; temporary files go where TMPDIR is then.

    Not with another PATH, or a cache that can't be used: what is found of the machine is remembered for later tests.
    """
    words = [*map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        done = CliRunner().invoke(app, words, env={"COLUMNS": "120", **environment}, catch_exceptions=False)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def expect_refused(done: Result, expected: str) -> None:
    """Expect one line on standard error, and exit code 2."""
    assert done.exit_code == 2, (done.stderr, done.exception)
    assert expected in done.stderr.lower() or expected in done.stderr
    assert done.stderr.count("\n") == 1
