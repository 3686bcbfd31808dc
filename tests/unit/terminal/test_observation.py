"""Observations: never over budget, both ends kept, an honest count of the lines between them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.terminal.screen.capture import CaptureError, excerpt_of, parse_capture
from harbor_gym.terminal.screen.observation import (
    Anchor,
    Excerpt,
    compose,
    describe,
    find_news,
    has_overflowed,
    place_anchor,
    take_head,
    take_tail,
    trim_lines,
)

_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)
_LINES = st.lists(_LINE, max_size=80)
_BUDGET = st.integers(200, 3000)
_GAP = re.compile(r"^\[\.\.\. (?:(\d+) lines \((\d+) bytes\)|(\d+) bytes) omitted \.\.\.\]\n", re.MULTILINE)


# --- the budget -----------------------------------------------------------------------------------------------------


@given(_LINES, _BUDGET, st.sampled_from(["", "[exit code 1]", "[still running after 60.0 s]"]))
def test_what_fits_is_whole(lines: list[str], budget: int, header: str) -> None:
    text = "\n".join(lines)
    found = compose(header, Excerpt(text), max_bytes=budget)
    whole = "\n".join(part for part in (header, text) if part)
    if len(whole.encode()) <= budget - 1:
        assert (found.text, found.omitted_bytes) == (whole, 0)


@given(_LINES.map(lambda lines: lines * 10) | st.lists(st.text("é漢a", min_size=500), min_size=1, max_size=3), _BUDGET)
def test_a_cut_keeps_both_ends_and_counts_the_rest(lines: list[str], budget: int) -> None:
    text = "\n".join(lines)
    found = compose("[exit code 1]", Excerpt(text), max_bytes=budget)
    assert len(found.text.encode()) <= budget
    if found.omitted_bytes == 0:
        return
    assert found.text.startswith("[exit code 1]\n")
    gap = next(match for match in _GAP.finditer(found.text) if int(match[2] or match[3]) == found.omitted_bytes)
    head, tail = found.text[len("[exit code 1]\n") : gap.start()], found.text[gap.end() :]
    if not text.startswith(head):
        head = head[:-1]  # a line cut inside ends with a line feed of ours
    assert text.startswith(head)
    assert text.endswith(tail)
    between = text[len(head) : len(text) - len(tail)]
    assert len(between.encode()) == found.omitted_bytes
    assert between.count("\n") == int(gap[1] or 0)
    half = (budget - 100) // 2
    assert len(head.encode()) > half - max(len(line.encode()) for line in lines) - 2 or len(head.encode()) > half - 10


@pytest.mark.parametrize("missing", [0, 7])
def test_a_line_that_just_fits_is_shown_with_its_end(missing: int) -> None:
    ends = "b" * 2000
    for length in range(300, 600):  # about half of the budget
        line = "a" * length
        whole = Excerpt(f"{line}\n{ends}")
        excerpt = Excerpt(whole.head, ends, missing_lines=1, missing_bytes=missing) if missing else whole
        found = compose("", excerpt, max_bytes=1000)
        total = len(whole.head) + (len(ends) + missing if missing else 0)
        head, _, tail = found.text.partition("[... ")
        if head != f"{line}\n":
            head = head.removesuffix("\n")  # of ours, in a line cut inside
        assert found.omitted_bytes == total - len(head) - len(tail.partition(" omitted ...]\n")[2])


@given(_LINES, _LINES, st.integers(0, 10**9), st.integers(1, 10**12), _BUDGET)
def test_a_text_with_a_hole_stays_within_the_budget(
    head: list[str], tail: list[str], lines: int, size: int, budget: int
) -> None:
    excerpt = Excerpt("\n".join(head) + "\n", "\n".join(tail), missing_lines=lines, missing_bytes=size)
    found = compose("", excerpt, max_bytes=budget)
    assert len(found.text.encode()) <= budget
    assert found.omitted_bytes >= size
    assert any(int(match[2] or match[3]) == found.omitted_bytes for match in _GAP.finditer(found.text))


@given(st.text(), st.integers(0, 300))
def test_the_ends_are_whole_lines_or_part_of_one(text: str, limit: int) -> None:
    text = text.encode(errors="ignore").decode()
    head, tail = take_head(text, limit), take_tail(text, limit)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert max(len(head.encode()), len(tail.encode())) <= limit
    assert head == text or head.endswith("\n") or "\n" not in head
    assert tail in ("", text) or text[len(text) - len(tail) - 1] == "\n" or "\n" not in tail


def test_lines_are_trimmed() -> None:
    assert trim_lines(["a  ", "", " b\t", "  ", ""]) == ["a", "", " b"]


# --- new lines --------------------------------------------------------------------------------------------------------


@given(st.lists(_LINE, max_size=30), st.lists(_LINE, min_size=1, max_size=30), st.integers(0, 5))
def test_every_line_is_new_once(before: list[str], after: list[str], blank: int) -> None:
    shown = [*before, "$"]
    rows = len(shown) + blank
    anchor = place_anchor([*shown, *[""] * blank], cursor_row=len(before), rows=rows)
    lines = [*before, "$ typed", *after]
    start = find_news(lines, anchor, cursor_row=len(lines) - 1, new_prompt=True)
    assert lines[start:] == ["$ typed", *after]


def test_wrapped_lines_above_the_cursor_count_once() -> None:
    anchor = place_anchor(["a line of two rows", "$", "", ""], cursor_row=2, rows=5)
    assert anchor == Anchor(above=("a line of two rows",), line="$", row=2)


@pytest.mark.parametrize(
    ("lines", "cursor_row", "new_prompt"),
    [
        pytest.param(["other", "b", "$ x", "new"], 3, True, id="lines above changed"),
        pytest.param(["a", "$"], 1, True, id="cursor stands higher"),
        pytest.param(["a", "b", "$"], 2, True, id="a prompt that moved nothing"),
        pytest.param(["a"], 2, False, id="lines above are gone"),
    ],
)
def test_a_rewritten_screen_is_new_as_a_whole(lines: list[str], cursor_row: int, new_prompt: bool) -> None:
    assert find_news(lines, Anchor(("a", "b"), "$", 2), cursor_row=cursor_row, new_prompt=new_prompt) == 0


def test_nothing_happened_is_not_rewritten() -> None:
    assert find_news(["a", "b", "$"], Anchor(("a", "b"), "$", 2), cursor_row=2, new_prompt=False) == 2


@pytest.mark.parametrize(
    ("lines", "history", "lost"),
    [
        (["a", "$ seq", "1"], 50, False),
        (["a", "$ seq", "1"], 95, False),
        (["7", "8", "9"], 95, True),
        (["7", "8", "9"], 50, False),
        (["a", "8", "9"], 95, True),
    ],
)
def test_an_overflow_is_a_full_scrollback_without_the_old_screen(lines: list[str], history: int, lost: bool) -> None:
    assert has_overflowed(lines, Anchor(("a",), "$", 1), history_lines=history, limit=100) is lost


# --- the header -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "exit_code", "typed_line", "expected"),
    [
        ("prompt", 0, True, ""),
        ("prompt", None, True, ""),
        ("prompt", 2, True, "[exit code 2]"),
        ("idle", None, False, ""),
        (None, None, False, ""),
        ("deadline", None, True, "[still running after 1.5 s]"),
        ("fullscreen", None, True, "[full-screen program]"),
        ("tty_read", None, True, "[waiting for input]"),
        ("tty_read", None, False, ""),
        ("ended", 0, True, "[session ended, exit code 0]"),
        ("ended", None, True, "[session ended]"),
    ],
)
def test_the_header_reports_what_the_screen_does_not(
    wait: str | None, exit_code: int | None, typed_line: bool, expected: str
) -> None:
    assert describe(wait, exit_code=exit_code, waited_sec=1.5, typed_line=typed_line) == expected


# --- the script's answer ----------------------------------------------------------------------------------------------

_PANE = "@n pane 0  . 0 2 0 5"


def test_a_frame_is_read() -> None:
    capture = parse_capture(f"noise\n@n step ,prompt,idle 12:3:0\n{_PANE}\na \nb\n\n@n visible\nb\n\n@n end\n", "@n")
    assert (capture.waits, capture.mark, capture.exit_code) == (("prompt", "idle"), "12:3:0", 0)
    assert (capture.lines, capture.visible, capture.tail) == (("a ", "b", ""), ("b", ""), None)
    assert capture.pane is not None
    assert (capture.pane.dead, capture.pane.cursor_row, capture.pane.rows) == (False, 2, 5)
    assert excerpt_of(capture, start=1) == Excerpt("b")


def test_a_dead_pane_loses_the_line_that_tmux_wrote() -> None:
    capture = parse_capture(
        "@n step ,ended 12:3:0\n@n pane 1 7 . 0 2 0 5\n$ exit 7\nPane is dead (status 7, x)\n\n@n visible\n@n end\n",
        "@n",
    )
    assert capture.lines == ("$ exit 7",)
    assert capture.pane is not None
    assert capture.pane.dead_status == 7


@pytest.mark.parametrize(("status", "expected"), [("7 ", (7, "")), (" KILL", (None, "KILL")), ("", (None, ""))])
def test_a_dead_pane_has_a_status_or_a_signal(status: str, expected: tuple[int | None, str]) -> None:
    pane = parse_capture(f"@n step , 0:0:\n@n pane 1 {status} . 0 2 0 5\n@n visible\n@n end\n", "@n").pane
    assert pane is not None
    assert (pane.dead_status, pane.dead_signal) == expected


def test_a_gone_server_has_no_pane() -> None:
    capture = parse_capture("@n step , 0:0:0\n@n gone left of it: tmux socket\n@n end\n", "@n")
    assert (capture.pane, capture.loss) == (None, "left of it: tmux socket")


def test_a_cut_frame_counts_what_it_left_in_the_sandbox() -> None:
    body = "".join(f"line {number}\n" for number in range(100))
    text = f"{_PANE}\n{body}@n visible\nline 99\n"
    size, lines, limit = len(text), text.count("\n"), 150
    cut = f"{text[:limit]}\n@n cut {lines} {size}\n{text[-limit:]}"
    capture = parse_capture(f"@n step ,prompt 1:1:0\n{cut}@n end\n", "@n")
    assert capture.tail is not None
    shown = [*capture.lines, *capture.tail]
    omitted = [line for line in body.splitlines() if line not in shown]
    assert capture.missing_lines == len(omitted)
    assert capture.missing_bytes == sum(len(line) + 1 for line in omitted)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "@n step , 0:0:0\n",
        "@n end\n",
        f"@x step , 0:0:0\n{_PANE}\n@x end\n",
        "@n step , 0:0:0\n@n end\n",
        "@n step , 0:0:0\nbash: no such file\n@n end\n",
        f"@n step\n{_PANE}\n@n end\n",
    ],
)
def test_a_damaged_answer_is_an_error(answer: str) -> None:
    with pytest.raises(CaptureError):
        parse_capture(answer, "@n")
