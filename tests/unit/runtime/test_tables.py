"""Tables read the same everywhere: nothing is coloured, cut or taken for markup."""

import pytest

from harbor_gym._runtime.console.tables import markdown_table, plain_table


@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color"])
def test_columns_are_aligned_whatever_the_terminal_is(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", terminal), ("FORCE_COLOR", "1"), ("COLUMNS", "20"), ("CLICOLOR_FORCE", "1")):
        monkeypatch.setenv(name, value)
    table = plain_table(("step", "median ms"), [("ls", "7.0"), ("a longer step than 20 columns", "1020.0")], right=[1])
    assert table.splitlines() == [
        "step                           median ms",
        "ls                                   7.0",
        "a longer step than 20 columns     1020.0",
    ]


def test_cells_are_shown_as_they_are() -> None:
    cells = ("[bold]x[/bold]", ":smile:", "\\[red]", "x" * 5000)
    assert plain_table("abcd", [cells]).splitlines()[1].split() == list(cells)
    assert plain_table("a", [["x\ty"]]).splitlines()[1].split() == ["x", "y"]


def test_wide_letters_take_two_columns() -> None:
    assert plain_table("ab", [("\u65e5\u672c", "x"), ("abcd", "y")]).splitlines()[1:] == ["\u65e5\u672c  x", "abcd  y"]


def test_markdown_has_a_rule_and_no_bar_of_a_cells_own() -> None:
    assert markdown_table(("a", "b"), [("x|y", "1"), ("", "22")], right=[1]).splitlines() == [
        "| a    |  b |",
        "|------|---:|",
        "| x\\|y |  1 |",
        "|      | 22 |",
    ]


def test_a_table_without_rows_is_its_titles_and_one_without_titles_its_rows() -> None:
    assert plain_table(("a", "b"), []) == "a  b"
    assert plain_table((), [("a", "1"), ("  bc", "10")], right=[1]).splitlines() == ["a      1", "  bc  10"]
    assert plain_table((), []) == ""


def test_rows_printed_one_at_a_time_stay_below_their_titles() -> None:
    assert plain_table(("task", "sec", "v"), [], right=[1], widths=(6, 5)) == "task      sec  v"
    assert plain_table((), [("a", "1.0", "ok")], right=[1], widths=(6, 5)) == "a         1.0  ok"
    assert plain_table((), [("longer task", "2", "x")], right=[1], widths=(6, 5)) == "longer task      2  x"


def test_the_lines_of_a_cell_lie_below_one_another() -> None:
    assert plain_table((), [("a", "x\n\ny"), ("b", "z")]).splitlines() == ["a  x", "   y", "b  z"]
