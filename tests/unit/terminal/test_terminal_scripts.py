"""The step script is written in parts, and checked as the whole that runs in the sandbox."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym.terminal.scripts import SELDOM, read_script, read_source, split_step
from tests.helpers.patience import PATIENCE_SEC

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


def test_the_script_without_indentation_is_the_same() -> None:
    texts = [
        subprocess.run(
            ["bash"], input=f"set -- load\n{script}\ndeclare -f", capture_output=True, text=True, check=True
        ).stdout
        for script in (read_source("step"), read_script("step"))
    ]
    assert "ask_raw ()" in texts[0]
    assert texts[0] == texts[1]


def test_the_seldom_called_functions_are_read_at_the_first_call_of_one() -> None:
    whole = read_script("step")
    seldom, rest = split_step(whole)
    assert sorted(re.findall(r"^(\w+)\(\) \{", seldom, re.MULTILINE)) == sorted(SELDOM)

    def printed(load: str, then: str) -> str:
        script = f"seldom={shlex.quote(seldom)}\nset -- load\n{load}\n{then}"
        return subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True).stdout

    names = "declare -F"
    # What only such functions call has no substitute.
    assert {*printed(rest, names).splitlines()} < {*printed(whole, names).splitlines()}
    look = "screen=$'0 0 4 0 0|\\n>>> \\n'; read_prompt; echo \"$prompt\"; declare -f"
    assert printed(rest, look) == printed(whole, look)
    assert printed(rest, look).startswith(">>> \n")
    # As its file has it.
    assert printed(f"seldom=\n{seldom}{rest}", look) == printed(whole, look)


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


_CAPTURED = """
session=@s nonce=@n waits='' typed=10:6:0 may_capture=1 limit=1000 news=1
ask_raw() {
    sent=''
    case "$*" in
        *clear-history*) sent=captures ;;
        *capture-pane*) sent=reads ;;
        *@frame*) sent='reads again' ;;
    esac
    printf '%s, ' "${sent:-asks}"
    [ "${LOST:-none}" != "$sent" ] || { LOST='' reply='' && return 1; }
    reply=$'\\n%begin 1\\n|0 0 2 1 0|'$MARK$'\\n%end 1\\n%begin 2\\n%end 2\\n'
    case "$sent $IS_NEW" in
        'captures 1' | 'reads again 1') reply+=$'%begin 3\\n@n step ,prompt|@n pane 0|'$MARK$'\\n%end 3\\n' ;;
        captures*) [[ $* != *"'capture-pane -p"* ]] || reply+=$'%begin 3\\nthe screen\\n%end 3\\n' ;;
        reads*) reply=${reply/$'%begin 2\\n%end 2\\n'/$'%begin 2\\nthe screen\\n%end 2\\n'} ;;
    esac
}
find_source() { source=(:) bytes=0; }
"""


def _asked(steps: str, *, mark: str, is_new: bool, lost: str = "") -> str:
    script = f"set -- load\n{read_script('step')}\n{_CAPTURED}{steps}"
    settings = {"MARK": mark, "IS_NEW": "1" if is_new else "", "LOST": lost}
    done = subprocess.run(
        ["bash"],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SEC,
        env={**os.environ, **settings},
    )
    return done.stdout.strip()


@pytest.mark.parametrize("reads", ["at_prompt", "read_screen && at_new_prompt && is_complete"])
def test_a_prompt_at_which_an_answer_is_due_is_found_and_captured_by_one_request(reads: str) -> None:
    steps = f'{reads} && show_screen && echo "$why"'
    assert _asked(steps, mark="@s 10 7 p 0", is_new=True).startswith("captures, @n step ,prompt 10:7:0\n")


def test_where_no_prompt_is_the_same_request_reads_the_screen() -> None:
    steps = 'read_screen; echo "$kind $is_captured $screen"'
    assert _asked(steps, mark="@s 10 6 p 0", is_new=False) == "captures, p  0 0 2 1 0\nthe screen"


@pytest.mark.parametrize("kind", ["m", "r"])
def test_an_answer_that_is_not_due_at_a_prompt_is_captured_later(kind: str) -> None:
    steps = 'at_prompt && echo "$why $is_captured" || echo on'
    answer = {"m": "tty_read", "r": "on"}[kind]
    assert _asked(steps, mark=f"@s 10 7 {kind}", is_new=False) == f"captures, {answer}"


def test_where_more_input_is_on_its_way_nothing_is_captured_at_the_prompt() -> None:
    steps = 'may_capture=; at_prompt; read_screen; echo "$screen"'
    assert _asked(steps, mark="@s 10 6 p 0", is_new=False) == "asks, reads, 0 0 2 1 0\nthe screen"


def test_a_captured_screen_whose_answer_is_lost_is_read_again_and_not_captured_twice() -> None:
    """A second capture would lack the lines that the first one has taken from the scrollback."""
    steps = 'at_prompt && show_screen && echo "$why"'
    shown = _asked(steps, mark="@s 10 7 p 0", is_new=True, lost="captures")
    assert shown.startswith("captures, asks, reads again, @n step ,prompt 10:7:0\n")
