"""No output of a sandbox reaches a user's terminal as something that the terminal obeys."""

import asyncio
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxError, VerifierError, printable
from tests.helpers.harbor_trials import run_episode
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task
from tests.integration.adapters.test_evaluation_endpoint import KEY, run_eval, serving
from tests.unit.house.test_cli import run

TITLE, CLEAR, C1 = "\x1b]0;pwned\x07", "\x1b[2J", "\x9b31m"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PRINT = r"printf 'shown \033]0;pwned\007\033[2J\302\23331m here\n'"
VERIFIER = f"#!/bin/bash\n{_PRINT}\n{_PRINT} >&2\n"
"""Prints escape sequences; there is no verdict."""
_KEY = r"""printf '{"\\u001b]0;pwned\\u0007\\u001b[2J\\u009b31m": 1, "other": 0}' > /logs/verifier/reward.json"""
NAMER = f"#!/bin/bash\n{_PRINT}\n{_KEY}\n"
"""Prints them, and names a reward so: the error lists the names."""


def test_a_text_keeps_its_lines_and_loses_what_a_terminal_obeys() -> None:
    assert printable("a\tb\r\nc\n") == "a\tb\r\nc\n"
    assert printable(f"{TITLE}{CLEAR}{C1}\x7f") == r"\x1b]0;pwned\x07\x1b[2J\x9b31m\x7f"
    assert printable("hidden\rshown \u202egnp.exe \udc80") == r"hidden\rshown \u202egnp.exe \udc80"
    assert printable("žluťoučký 猫 🐈") == "žluťoučký 猫 🐈"


def test_an_error_that_quotes_a_sandbox_is_printable_whatever_shows_it() -> None:
    error = SandboxError(f"it said {TITLE}").attach({"verifier_output": f"x{CLEAR}"}, trial_dir=None)
    error.add_note(C1)
    for shown in (error, pickle.loads(pickle.dumps(error))):
        assert not OBEYED.search("".join(traceback.format_exception(shown)))
        assert not OBEYED.search(f"{shown} {shown!r}")
        assert r"\x1b]0;pwned\x07" in str(shown)
    assert error.diagnostics["verifier_output"] == f"x{CLEAR}", "programs get the text as it was"


@pytest.mark.local
async def test_a_verifiers_escape_sequences_reach_no_terminal_by_an_episodes_error(tmp_path: Path) -> None:
    with pytest.raises(VerifierError) as raised:
        await run_episode(write_task(tmp_path / "task", test_sh=VERIFIER), ["true"], sandbox="local")
    shown = "".join(traceback.format_exception(raised.value))
    assert "pwned" in shown
    assert not OBEYED.search(shown)
    assert TITLE in raised.value.diagnostics["verifier_output"]


@pytest.mark.local
async def test_a_verifiers_escape_sequences_reach_no_terminal_by_a_command(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", test_sh=VERIFIER)
    checked = await asyncio.to_thread(run, "check", task, "--env", "local", "--repeat", "1", "--no-forge")
    assert "pwned" in checked.stdout + checked.stderr
    assert not OBEYED.search(checked.stdout + checked.stderr)
    write_task(task, test_sh=NAMER)
    async with serving() as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY", "--env", "local"]
        given = [str(task), *where, "--episodes", "1", "--output", str(tmp_path / "out")]
        _, shown = await run_eval(*given, environment={"OWN_KEY": KEY})
    assert "pwned" in shown
    assert not OBEYED.search(shown)


def test_an_error_of_another_librarys_is_shown_without_them_too() -> None:
    program = "from harbor_gym.cli.exits import run_and_exit\ndef fail(): raise RuntimeError('\\x1b]0;pwned\\x07')\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}run_and_exit(fail)"], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: \\x1b]0;pwned\\x07\n")


def test_commands_print_by_one_function() -> None:
    """It spells out control characters. ``watch`` and ``play`` draw on the terminal by themselves."""
    package = ROOT / "harbor_gym/cli"
    direct = re.compile(r"typer\.(echo|secho)|[^_.\w]print\(|stdout\.write")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if direct.search(path.read_text())}
    assert found == {"shared.py", "results/watch.py", "tasks/play.py"}
