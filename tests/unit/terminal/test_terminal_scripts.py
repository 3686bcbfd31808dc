"""The step script is written in parts, and checked as the whole that runs in the sandbox."""

import subprocess
import sys
from pathlib import Path

from harbor_gym.terminal.scripts import read_script, read_source

_SHELLCHECK = Path(sys.executable).parent / "shellcheck"


def check(script: str) -> str:
    done = subprocess.run([_SHELLCHECK, "-s", "bash", "-"], input=script, capture_output=True, text=True, check=False)
    return done.stdout


def test_the_joined_step_script_has_no_variable_of_which_a_part_knows_nothing() -> None:
    lines = read_source("step").splitlines(keepends=True)
    whole = "".join(line for line in lines if "disable=SC2034,SC2154" not in line)
    assert check(whole) == ""
    assert "SC2034" in check(whole + "mistyped=1\n")
    assert "SC2154" in check(whole + 'echo "$mistyped"\n')


def test_every_part_ends_before_the_next_begins() -> None:
    script = read_script("step")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.index("exec 2>/dev/null") < script.index("ask() {") < script.index("mode=$1")


def test_no_part_needs_a_file_of_bashs_own() -> None:
    """bash writes a longer here-string into a file for temporary ones, and the disk may be full."""
    assert "<<<" not in read_script("step")
