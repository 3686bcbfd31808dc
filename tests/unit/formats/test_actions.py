"""Actions: nothing a model can write raises, hangs, or reaches the terminal half-read."""

import json
import math
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.formats import (
    ActionFormat,
    ParsedAction,
    harbor_parser,
    parse_action,
    parse_terminus_json,
    parse_terminus_xml,
    terminus,
)
from harbor_gym.formats.harbor_parser import load_harbor_parser
from harbor_gym.types import Command
from tests.unit.formats.test_beside_harbor import XML_TAGS, respond

_PATIENCE_SEC = 60.0
"""Far beyond a linear parse of a megabyte, far below a quadratic one."""


def message(commands: object, **fields: object) -> str:
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, **fields})


def parse_with_patience(text: str, parse: Callable[[str], ParsedAction] = parse_terminus_json) -> ParsedAction:
    """Parse in a thread, so that a parse without end fails the test instead of hanging it."""
    found: list[ParsedAction] = []
    thread = threading.Thread(target=lambda: found.append(parse(text)), daemon=True)
    thread.start()
    thread.join(_PATIENCE_SEC)
    assert found, f"still parsing {len(text)} characters that begin with {text[:40]!r}"
    return found[0]


# --- both forms -------------------------------------------------------------------------------------------------------


def test_text_and_commands_mean_the_same() -> None:
    text = message([{"keystrokes": "ls\n", "duration": 0.5}, {"keystrokes": "C-c", "duration": 90}])
    expected = (Command("ls\n", 0.5), Command("C-c", 60.0))
    assert parse_action(text).commands == expected
    assert parse_action([("ls\n", 0.5), Command("C-c", 90)]).commands == expected


def test_analysis_and_plan_are_kept() -> None:
    parsed = parse_action(message([], task_complete=True))
    assert (parsed.analysis, parsed.plan, parsed.task_complete) == ("a", "p", True)


def test_no_commands_is_an_action() -> None:
    assert parse_action([]) == ParsedAction((), task_complete=False, error=None, warning=None, analysis="", plan="")


@pytest.mark.parametrize("action", [[("ls\n",)], ["ls\n"], [("ls\n", "1")], [(b"ls\n", 1.0)], [None]])
def test_a_callers_mistake_raises(action: list[tuple[str, float]]) -> None:
    with pytest.raises(UsageError, match="Command 1 of the action"):
        parse_action(action)


@pytest.mark.parametrize(("duration", "expected"), [(-0.0, 0.0), (0, 0.0), (math.inf, 60.0), (10**400, 60.0), (7, 7.0)])
def test_durations_are_clamped(duration: float, expected: float) -> None:
    assert parse_action([("", duration)]).commands == (Command("", expected),)


@pytest.mark.parametrize("duration", [-1, -1e-9, math.nan, -math.inf, -(10**400)])
def test_a_duration_below_zero_is_a_callers_mistake(duration: float) -> None:
    with pytest.raises(UsageError, match="Command 2 of the action: its duration is"):
        parse_action([("ls\n", 0.0), Command("ls\n", duration)])


@pytest.mark.parametrize(("keystrokes", "word"), [("a\0b", "NUL"), ("\ud83d", "surrogate"), ("\udc00x", "surrogate")])
def test_what_cannot_be_typed_is_an_error(keystrokes: str, word: str) -> None:
    for action in (
        [("ls\n", 1.0), (keystrokes, 1.0)],
        message([{"keystrokes": k, "duration": 1} for k in ("", keystrokes)]),
    ):
        parsed = parse_action(action)
        assert parsed.commands == ()
        assert parsed.error is not None
        assert parsed.error.startswith("Command 2 ")
        assert word in parsed.error


def test_what_cannot_be_typed_is_a_warning_when_the_task_is_complete() -> None:
    parsed = parse_terminus_json(message([{"keystrokes": "\0", "duration": 1}], task_complete=True))
    assert (parsed.commands, parsed.task_complete, parsed.error) == ((), True, None)
    assert parsed.warning is not None
    assert "NUL" in parsed.warning


# --- hostile input ----------------------------------------------------------------------------------------------------

_TYPED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(_TYPED, st.floats(0, 60))
def test_keystrokes_pass_unchanged(keystrokes: str, duration: float) -> None:
    parsed = parse_terminus_json(message([{"keystrokes": keystrokes, "duration": duration}]))
    assert parsed.commands == (Command(keystrokes, duration),)


@given(_TYPED.filter(lambda typed: "<" not in typed), st.floats(0, 60))
def test_keystrokes_pass_unchanged_in_xml(keystrokes: str, duration: float) -> None:
    parsed = parse_terminus_xml(respond(f'<keystrokes duration="{duration}">{keystrokes}</keystrokes>'))
    assert parsed.commands == (Command(keystrokes, duration),)


_MEGABYTE = 1_000_000
_GARBAGE: dict[str, Callable[[], str]] = {
    "open braces": lambda: "{" * _MEGABYTE,
    "closed braces": lambda: "}" * _MEGABYTE,
    "brace pairs": lambda: "{}" * (_MEGABYTE // 2),
    "open before pairs": lambda: "{" + "{}" * (_MEGABYTE // 2),
    "nested pairs": lambda: "{ {} " * (_MEGABYTE // 5),
    "broken objects": lambda: "{x}" * (_MEGABYTE // 3),
    "quotes": lambda: '"' * _MEGABYTE,
    "backslashes": lambda: "\\" * _MEGABYTE,
    "brackets": lambda: '{"commands":' + "[" * _MEGABYTE + "}",
    "spaces": lambda: '{"analysis"' + " " * _MEGABYTE + "}",
    "fields without a colon": lambda: "{" + '"analysis"  ' * (_MEGABYTE // 12) + "}",
    "digits": lambda: '{"analysis":' + "9" * _MEGABYTE + "}",
    "letters": lambda: "a" * _MEGABYTE,
    "noise": lambda: "".join(random.Random(0).choices('{}[]":,\\ \nab1', k=_MEGABYTE)),
    "too long to read": lambda: " " * 17_000_000,
}


@pytest.mark.parametrize("name", _GARBAGE)
def test_a_megabyte_of_garbage_is_refused(name: str) -> None:
    parsed = parse_with_patience(_GARBAGE[name]())
    assert parsed.error
    assert len(parsed.error) < 3000


def test_a_megabyte_of_keystrokes_is_read() -> None:
    keystrokes = "y" * _MEGABYTE
    assert parse_with_patience(message([{"keystrokes": keystrokes, "duration": 1}])).commands == (
        Command(keystrokes, 1.0),
    )


_GARBAGE_XML: dict[str, Callable[[], str]] = {
    "open responses": lambda: "<response>" * (_MEGABYTE // 10),
    "open sections": lambda: "<response>" + "<analysis>" * (_MEGABYTE // 10),
    "open commands": lambda: "<response>" + "<commands>" * (_MEGABYTE // 10) + "</response>",
    "open keystrokes": lambda: respond("<keystrokes>" * (_MEGABYTE // 12)),
    "cut keystrokes": lambda: respond("<keystrokes " * (_MEGABYTE // 12)),
    "cut keystrokes, closed once": lambda: respond("<keystrokes " * (_MEGABYTE // 12) + "</keystrokes>"),
    "long attribute": lambda: respond(f"<keystrokes {'a' * _MEGABYTE}>ls</keystrokes>"),
    "long blanks": lambda: respond(f"<keystrokes a{' ' * _MEGABYTE}>ls</keystrokes>"),
    "angle brackets": lambda: respond("<" * _MEGABYTE),
    "self-closing": lambda: "<response>" + "<analysis" + " " * _MEGABYTE,
    "task_complete blanks": lambda: "<response>" + ("<task_complete>" + " " * 100) * (_MEGABYTE // 115),
    "letters": lambda: "a" * _MEGABYTE,
    "noise": lambda: "".join(
        random.Random(0).choices([*XML_TAGS, " ", "\n", "<", ">", '"', "a", "="], k=_MEGABYTE // 5)
    ),
}


@pytest.mark.parametrize("name", _GARBAGE_XML)
def test_a_megabyte_of_garbage_in_xml_runs_nothing(name: str) -> None:
    parsed = parse_with_patience(_GARBAGE_XML[name](), parse_terminus_xml)
    assert parsed.commands == () or name == "noise"
    assert len(parsed.error or "") < 3000


def test_a_megabyte_of_keystrokes_in_xml_is_read() -> None:
    keystrokes = "<keystrokes >" * (_MEGABYTE // 13)
    message = respond(f'<keystrokes duration="1">{keystrokes}</keystrokes>')
    assert parse_with_patience(message, parse_terminus_xml).commands == (Command(keystrokes, 1.0),)


@pytest.mark.parametrize(
    ("text", "scanned"),
    [
        ("", 0),
        ("<plan>ab", 8),
        ("x<plan>a<plan>b", 2 * 14),
        ("<plan></plan>", 0),
        ("</plan><plan>", 6),
        ("<plan>a</plan><plan>", 0),
        ("<plan>a<analysis>", 17 + 10),
        ("<keystrokes>ls</keystrokes>", 11**2),
        ('ab<keystrokes duration="1">ls</keystrokes>', 24**2),
        ("<keystrokes>a</keystrokes>" * 3, 3 * 11**2),
        ("<keystrokes></keystrokes><keystrokes></keystrokes>", 2 * 11**2),
        ("<keystrokes>a</keystrokes> <keystrokes>b", 11**2 + 13),
        ("  <keystrokes>a<keystrokes>b", 2 * 26),
        ("<keystrokes", 11),
        ("a <keystrokes</keystrokes>", 24),
        ("<plan><keystrokes>", 18 + 12),
    ],
)
def test_what_is_read_in_vain_is_reckoned_beforehand(text: str, scanned: int) -> None:
    assert terminus._scanned_chars(text) == scanned  # pyright: ignore[reportPrivateUsage]  # its limit is out of a test's reach


def test_ten_thousand_warnings_are_cut() -> None:
    parsed = parse_with_patience(message([{"keystrokes": "a"}] * 10_000))
    assert len(parsed.commands) == 10_000
    assert parsed.warning is not None
    assert len(parsed.warning) < 3000


# --- Harbor's parser --------------------------------------------------------------------------------------------------


def test_the_parser_is_where_and_what_we_take_it_for() -> None:
    """Fails when a new Harbor moves or renames the parts that ``harbor_parser`` knows."""
    verdict = load_harbor_parser().parse_response(message([{"keystrokes": "ls\n", "duration": 2}], task_complete="yes"))
    assert [(command.keystrokes, command.duration) for command in verdict.commands] == [("ls\n", 2.0)]
    assert (verdict.is_task_complete, verdict.error, verdict.warning) == (True, "", "")
    assert (verdict.analysis, verdict.plan) == ("a", "p")


def test_loading_the_parser_loads_nothing_else() -> None:
    code = (
        "import sys; from harbor_gym.formats import parse_action; before = set(sys.modules); parse_action('{}');"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('harbor', 'litellm', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_moved_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harbor_parser, "_DIRECTORY", Path("agents", "elsewhere"))
    load_harbor_parser.cache_clear()
    try:
        for action_format in (ActionFormat.TERMINUS_JSON, ActionFormat.TERMINUS_XML):
            with pytest.raises(MissingDependencyError, match=rf"{action_format} .*agents/elsewhere/.*pip install"):
                load_harbor_parser(action_format)
    finally:
        load_harbor_parser.cache_clear()
