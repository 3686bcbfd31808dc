"""Recordings as moving SVGs: one screen at a time, as a terminal shows it, and nothing of it is markup."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from harbor_gym.cli.main import app
from harbor_gym.errors import UsageError
from harbor_gym.report.animation import write_animation
from harbor_gym.report.screen import read_recording
from harbor_gym.terminal.recording import CastRecorder

COLUMNS, ROWS = 40, 6
SVG = "{http://www.w3.org/2000/svg}"
TURNS = (
    ("", "root@a:~# "),
    ("ls\n", "root@a:~# ls\nnotes.txt\nroot@a:~# "),
    ("cat <b>&'\"\n", "[exit code 1]\nroot@a:~# cat <b>&'\"\n<script>alert(1)</script>\nroot@a:~# "),
)


def record(path: Path, turns: Sequence[tuple[str, str]] = TURNS) -> Path:
    with CastRecorder(path, columns=COLUMNS, rows=ROWS, title="a & <b>") as recorder:
        for number, (typed, text) in enumerate(turns):
            recorder.turn(number, typed, text, number * 1.5)
    return path


def test_each_turn_has_the_screen_that_a_terminal_shows(tmp_path: Path) -> None:
    path = record(tmp_path / "a.cast")
    recording = read_recording(path)
    assert [frame.typed for frame in recording.frames] == [typed for typed, _ in TURNS]
    assert recording.frames[1].lines == ("root@a:~# ls", "notes.txt", "root@a:~#")
    assert [frame.at_sec for frame in recording.frames] == [0, 1.5, 3]


def test_wide_and_long_lines_are_wrapped_and_scrolled(tmp_path: Path) -> None:
    path = record(tmp_path / "a.cast", [("x", "日" * 21), ("x", "\n".join(f"line {n}" for n in range(9)))])
    wrapped, scrolled = (frame.lines for frame in read_recording(path).frames)
    assert wrapped == ("日" * 20, "日")
    assert scrolled == tuple(f"line {n}" for n in range(3, 9))


def test_the_picture_is_xml_with_one_group_a_turn_and_nothing_active(tmp_path: Path) -> None:
    path = record(tmp_path / "a.cast")
    (tmp_path / "a.json").write_text(json.dumps({"end_reason": "completed", "reward": 1.0}))
    assert write_animation(path, tmp_path / "a.svg") == len(TURNS)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    groups = root.findall(f"{SVG}g")
    shown = [[text.text for text in group] for group in groups]
    assert shown[2][-3:-1] == ["<script>alert(1)</script>", "root@a:~#"]
    assert shown[2][-1] == "turn 2 types  cat <b>&'\"⏎   ->  completed, reward 1"
    assert shown[0] == ["root@a:~#", "the first screen"]
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "style", "rect", "circle", "text", "g"),
    }
    assert not re.search(r"href|url\(|@import|\son\w+=", (tmp_path / "a.svg").read_text())


def test_at_every_moment_one_turn_is_shown(tmp_path: Path) -> None:
    write_animation(record(tmp_path / "a.cast"), tmp_path / "a.svg")
    rules = dict(re.findall(r"@keyframes k(\d)\{((?:[\d.]+%\{\w+:\w+\})+)\}", (tmp_path / "a.svg").read_text()))
    steps = {
        number: [(float(at), state) for at, state in re.findall(r"([\d.]+)%\{visibility:(\w+)\}", rule)]
        for number, rule in rules.items()
    }
    assert len(steps) == len(TURNS)
    for moment in range(1000):
        states = [[state for at, state in step if at <= moment / 10][-1] for step in steps.values()]
        assert states.count("visible") == 1, moment / 10


def test_a_kept_trials_reward_is_shown_and_rows_can_be_cut(tmp_path: Path) -> None:
    path = record(tmp_path / "recording.cast")
    (tmp_path / "result.json").write_text(json.dumps({"verifier_result": {"rewards": {"reward": 0.5}}}))
    done = CliRunner().invoke(app, ["animate", str(path), "--rows", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'recording.svg'}: 3 turns\n"
    groups = ElementTree.parse(tmp_path / "recording.svg").getroot().findall(f"{SVG}g")
    assert [len(group) for group in groups] == [2, 2, 2]
    assert (groups[-1][-1].text or "").endswith("->  reward 0.5")


@pytest.mark.parametrize("content", ["", "{}", "no", '{"version": 3, "width": 1, "height": 1}', '{"version": 2}'])
def test_what_is_no_recording_is_one_line_and_exit_code_2(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.cast").write_text(content)
    done = CliRunner().invoke(app, ["animate", str(tmp_path / "a.cast")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "is no recording" in done.stderr


def test_a_recording_without_a_turn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no turn"):
        write_animation(record(tmp_path / "a.cast", []), tmp_path / "a.svg")


def cast(path: Path, *events: object, **header: object) -> Path:
    """Write a recording that another program made, or a policy."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, **header}
    path.write_text("\n".join(map(json.dumps, [head, *events])), encoding="utf-8")
    return path


# Of each class: C0, DEL, C1, directions, surrogates, no characters, combining, wide, other planes, markup.
ODD = (
    "\0\x01\x08\x0b\x0c\r\x1b\x7f\x85\x9b\u202e\u2028\u2066\ud800\udfff"
    "\ufdd0\ufffe\uffff\u0300\u65e5\U0001f600\U0010ffff<&>'\"]]>\n\t"
)
TEXTS = st.text(st.sampled_from(ODD) | st.characters(), max_size=30) | st.sampled_from(
    ["\x1b[?4m", "\x1b[1;2;3;4H", "\x1b[?1J", "\x1b]0;a\x07", "\x1b[99999999999C", "\x1b(0q", "\x9b4m"]
)


@given(title=TEXTS, label=TEXTS, typed=TEXTS, shown=TEXTS, ending=TEXTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_makes_the_picture_ill_formed(
    tmp_path: Path, title: str, label: str, typed: str, shown: str, ending: str
) -> None:
    path = cast(tmp_path / "a.cast", [0, "m", f"1{label}"], [0, "i", typed], [1, "o", shown], title=title)
    (tmp_path / "a.json").write_text(json.dumps({"end_reason": ending, "reward": 1.0}))
    write_animation(path, tmp_path / "a.svg")
    groups = ElementTree.fromstring((tmp_path / "a.svg").read_bytes()).findall(f"{SVG}g")
    assert [group.get("id") for group in groups] == ["t0"]


def test_a_character_that_cannot_be_drawn_takes_its_column(tmp_path: Path) -> None:
    path = cast(tmp_path / "a.cast", [0, "m", "1"], [0, "o", "a\ud800b\ufffec"])
    assert read_recording(path).frames[0].lines == ("a\ufffdb\ufffdc",)


@pytest.mark.parametrize(
    "header",
    [
        {"width": 10**7},
        {"width": 0},
        {"height": 0},
        {"height": -1},
        {"height": 10**400},
        {"width": float("inf")},
        {"width": float("nan")},
        {"width": [80]},
        {"idle_time_limit": "soon"},
        {"idle_time_limit": 10**400},
        {"idle_time_limit": [1]},
    ],
    ids=lambda header: f"{header!r:.30}",
)
def test_a_header_that_no_recording_has(tmp_path: Path, header: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="is no recording"):
        write_animation(cast(tmp_path / "a.cast", [0, "m", "1"], **header), tmp_path / "a.svg")


@pytest.mark.parametrize("event", [[10**400, "m", "2"], [[], "m", "2"], [1, "m"], {"a": 1}, [1, "o", "\x1b[?4m"], 7])
def test_a_broken_event_ends_the_recording(tmp_path: Path, event: object) -> None:
    path = cast(tmp_path / "a.cast", [0, "m", "1"], event, [1, "m", "3"])
    assert [frame.label for frame in read_recording(path).frames] == ["1"]
