"""The screen as tmux prints it: cells, cursor, and nothing that is not the terminal's."""

import shlex
from pathlib import Path
from typing import Any, override

import pytest
from harbor.environments.base import ExecResult
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from harbor_gym.terminal.screen.screen import Screen, capture_screen, parse_screen
from harbor_gym.testing import FakeEnvironment

NONCE = "@n"


def read(numbers: str, *lines: str, before: str = "") -> Screen:
    screen = parse_screen("\n".join([f"{before}{NONCE} {numbers}", *lines]), NONCE)
    assert screen is not None
    return screen


def test_numbers_and_rows_are_read_in_their_order() -> None:
    screen = read("30 4 2 7 1 0 0", "one", "two", before="noise @n0 \n")
    assert (screen.columns, screen.rows) == (30, 4)
    assert (screen.cursor_row, screen.cursor_column) == (2, 7)
    assert (screen.is_cursor_visible, screen.is_full_screen) == (True, False)
    assert screen.lines == ("one", "two", "", "")


@pytest.mark.parametrize(
    ("flags", "visible", "full"), [("0 1", False, True), ("1 0", True, False), ("1 1", True, True)]
)
def test_flags_are_distinguished(flags: str, visible: bool, full: bool) -> None:
    screen = read(f"30 4 0 0 {flags} 0")
    assert (screen.is_cursor_visible, screen.is_full_screen) == (visible, full)


def test_no_more_rows_than_the_screen_has() -> None:
    assert read("30 2 0 0 1 0 0", "a", "b", "", "").lines == ("a", "b")


@pytest.mark.parametrize(("at", "row", "column"), [("3 29", 3, 29), ("4 30", 3, 29), ("0 0", 0, 0), ("9 99", 3, 29)])
def test_a_cursor_behind_the_last_cell_stands_on_it(at: str, row: int, column: int) -> None:
    screen = read(f"30 4 {at} 1 0 0")
    assert (screen.cursor_row, screen.cursor_column) == (row, column)


def test_what_tmux_writes_into_a_dead_pane_is_left_out() -> None:
    lines = ("last words", "", "Pane is dead (status 3, now)", "")
    assert read("30 4 0 0 1 0 1", *lines).lines == ("last words", "", "", "")
    assert read("30 4 0 0 1 0 0", *lines).lines == lines


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no server running on /x",
        "@n",
        "@n 30 4 0 0 1 0\n",
        "@n 30 4 0 0 1 0 0 0\n",
        "@m 30 4 0 0 1 0 0\n",
        "@n a b\n",
    ],
)
def test_another_answer_is_no_screen(answer: str) -> None:
    assert parse_screen(answer, NONCE) is None


def test_a_forged_answer_has_colours_and_nothing_else_that_a_terminal_obeys() -> None:
    styled = "\x1b[1;31mred\x1b[0m \x0eqq\x0f"
    screen = read("30 2 0 0 1 0 0", styled, "\x1b]0;pwned\x07a\x1b[2J\x9b31m")
    assert screen.lines == (styled, r"a\x1b[2J\x9b31m")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plain  ", "plain"),
        ("\x1b[1;31mred\x1b[m", "red"),
        ("\x1b[38:5:208mcolon\x1b[39m", "colon"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("\x0elqk\x0f lqk", "┌─┐ lqk"),
        ("\x0ex\x0f and \x0ex", "│ and │"),
        ("\x1b[7m  \x1b[m", ""),
        (" indented", " indented"),
    ],
)
def test_the_text_is_what_a_person_reads(line: str, text: str) -> None:
    assert read("30 4 0 0 1 0 0", "first", line, "").text == f"first\n{text}".rstrip("\n")


def test_empty_lines_count_in_the_middle_only() -> None:
    assert read("30 6 0 0 1 0 0", "", "a", "", "b", "", "").text == "\na\n\nb"


class Tmux(FakeEnvironment):
    """A fake that answers as tmux would, and notes how it was asked."""

    asked: list[dict[str, Any]]

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        self.asked = [*getattr(self, "asked", []), {"command": command, **kwargs}]
        nonce = next((word for word in command.replace("'", " ").split() if word.startswith("@")), "")
        return ExecResult(stdout=f"{nonce} 30 2 1 4 1 0 0\none\ntwo\n", stderr="", return_code=0)


async def test_tmux_is_asked_once_for_numbers_and_cells(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    sandbox = Tmux(
        environment_dir=tmp_path / "environment",
        environment_name="test",
        session_id="test",
        trial_paths=TrialPaths(tmp_path / "trial"),
        task_env_config=EnvironmentConfig(),
    )
    for tools in (None, "/tools"):
        screen = await capture_screen(sandbox, "/session", user="dev", tools=tools)
        assert screen is not None
        assert (screen.columns, screen.rows, screen.cursor_row, screen.cursor_column) == (30, 2, 1, 4)
        assert screen.lines == ("one", "two")
    plain, brought = sandbox.asked
    assert plain["user"] == "dev"
    assert 0 < plain["timeout_sec"] <= 60
    command = plain["command"]
    assert command.endswith("; true"), "a session that is gone is no failure"
    *tmux, numbers, then, capture, escapes, to_stdout, which, pane = shlex.split(command.removesuffix("; true"))
    assert tmux == ["tmux", "-u", "-S", "/session/socket", "display-message", "-p", "-t", "%0"]
    assert numbers.split()[1:] == [
        *("#{pane_width}", "#{pane_height}", "#{cursor_y}", "#{cursor_x}"),
        *("#{cursor_flag}", "#{alternate_on}", "#{pane_dead}"),
    ]
    assert [then, capture, escapes, to_stdout, which, pane] == [";", "capture-pane", "-e", "-p", "-t", "%0"]
    nonces = {numbers.split()[0], shlex.split(brought["command"])[-8].split()[0]}
    assert len(nonces) == 2, "nothing in the pane can know how the answer begins"
    assert brought["command"].startswith('PATH="/tools:$PATH"; tmux ')
