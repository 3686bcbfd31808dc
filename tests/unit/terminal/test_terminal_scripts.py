"""The step script is written in parts, and checked as the whole that runs in the sandbox."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym.terminal.scripts import read_script, read_source

# A tmux whose every answer is as short as any can be, as in a sandbox whose clock shows the year 1970.
_SHORTEST = """
coproc TMUX_CLIENT {
    while read -r && read -r end; do
        end=${end#*\\'}
        printf '%%begin 1 1 0\\n%%%s 1 1 0\\n%%begin 1 1 0\\n%s\\n%%end 1 1 0\\n' "$OUTCOME" "${end%\\'}"
    done
}
nonce=@n from=${TMUX_CLIENT[0]} to=${TMUX_CLIENT[1]}
for turn in 1 2; do
    if ask "select-pane -t %0"; then echo "done ${#answer[@]}"; else echo "failed ${#answer[@]}"; fi
done
"""
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


@pytest.mark.parametrize(("outcome", "answers"), [("end", "done 1\ndone 1\n"), ("error", "failed 0\nfailed 0\n")])
def test_the_shortest_answers_of_tmux_are_not_waited_for_in_vain(outcome: str, answers: str) -> None:
    """bash reads as many bytes at once as are certain to come; if they did not come, it would wait for ever."""
    script = f"set -- load\n{read_script('step')}\nOUTCOME={outcome}\n{_SHORTEST}"
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == answers


@pytest.mark.parametrize(
    ("saved", "listed", "answer"),
    [
        (5, "text 5", "whole 5"),
        (32_000, "other 1\ntext 32000", "whole 32000"),
        # The disk was full.
        (4, "text 5", "not whole"),
        (0, "text 5", "not whole"),
        (5, "text 55\ntext x 5\nmy text 5", "not whole"),
        # bash is slow with it.
        (32_001, "text 32001", "not whole"),
    ],
)
def test_a_saved_text_is_taken_where_it_is_short_and_whole(
    saved: int, listed: str, answer: str, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("x" * saved, encoding="utf-8")
    script = f"set -- load\n{read_script('step')}\ndir={tmp_path} lines=$'frame\\n'{shlex.quote(listed)}\n"
    script += 'if read_saved text; then echo "whole ${#part}"; else echo "not whole"; fi'
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout == f"{answer}\n"
