"""What terminus-xml-plain accepts: one row per case, read off Harbor's own parser.

Rows that name our hardening differ from Harbor on purpose; every other verdict is Harbor's, word for word.
"""

# The inputs are quoted exactly as a model writes them.
# ruff: noqa: E501

import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.formats import ActionFormat, ParsedAction, parse_action, parse_terminus_xml, terminus
from harbor_gym.formats.harbor_parser import load_harbor_parser
from harbor_gym.types import Command

BOTH = "<analysis>a</analysis><plan>p</plan>"
LS = '<keystrokes duration="0.1">ls\n</keystrokes>'
RUNS_LS = [("ls\n", 0.1)]
EMPTY = "- Commands section is empty; not taking any action. If you want to wait a specific amount of time please use `sleep`, but if you're waiting for a command to finish then continue to wait."


def respond(commands: str, rest: str = "") -> str:
    """Return a whole message."""
    return f"<response>{BOTH}<commands>{commands}</commands>{rest}</response>"


@dataclass(frozen=True)
class Row:
    """One message and what becomes of it."""

    case: str
    text: str
    commands: list[tuple[str, float]]
    task_complete: bool = False
    error: str | None = None
    warning: str | None = None


ROWS = [
    Row("min ok", respond(LS), RUNS_LS),
    Row(
        "pretty",
        "<response>\n<analysis>\na\n</analysis>\n<plan>\np\n</plan>\n<commands>\n" + LS + "\n</commands>\n</response>",
        RUNS_LS,
    ),
    Row(
        "no duration",
        respond("<keystrokes>ls\n</keystrokes>"),
        [("ls\n", 1.0)],
        warning="- Command 1: Missing duration attribute, using default 1.0",
    ),
    Row(
        "duration single quotes",
        respond("<keystrokes duration='2'>ls\n</keystrokes>"),
        [("ls\n", 2.0)],
        warning="- Command 1: Use double quotes for attribute 'duration': duration=\"2\"",
    ),
    Row(
        "duration unquoted",
        respond("<keystrokes duration=2>ls\n</keystrokes>"),
        [("ls\n", 1.0)],
        warning="- Command 1: Attribute 'duration' value should be quoted: duration=\"2\"\n- Command 1: Missing duration attribute, using default 1.0",
    ),
    Row(
        "duration word",
        respond('<keystrokes duration="soon">ls\n</keystrokes>'),
        [("ls\n", 1.0)],
        warning="- Command 1: Invalid duration value 'soon', using default 1.0",
    ),
    Row(
        "duration empty",
        respond('<keystrokes duration="">ls\n</keystrokes>'),
        [("ls\n", 1.0)],
        warning="- Command 1: Invalid duration value '', using default 1.0",
    ),
    Row("duration negative", respond('<keystrokes duration="-5">ls\n</keystrokes>'), [("ls\n", 0.0)]),
    Row("duration 1e9", respond('<keystrokes duration="1e9">ls\n</keystrokes>'), [("ls\n", 60.0)]),
    Row("duration nan", respond('<keystrokes duration="nan">ls\n</keystrokes>'), [("ls\n", 1.0)]),
    Row("duration inf", respond('<keystrokes duration="inf">ls\n</keystrokes>'), [("ls\n", 60.0)]),
    Row("duration huge int", respond('<keystrokes duration="1' + "0" * 400 + '">ls\n</keystrokes>'), [("ls\n", 60.0)]),
    Row(
        "unknown attribute",
        respond('<keystrokes duration="1" block="true">ls\n</keystrokes>'),
        [("ls\n", 1.0)],
        warning="- Command 1: Unknown attribute 'block' - known attributes are: duration",
    ),
    Row("empty keystrokes", respond('<keystrokes duration="5"></keystrokes>'), [("", 5.0)]),
    Row("self-closing keystrokes", respond('<keystrokes duration="5"/>'), []),
    Row("two commands", respond(LS + '<keystrokes duration="0.1">pwd\n</keystrokes>'), [("ls\n", 0.1), ("pwd\n", 0.1)]),
    Row(
        "no newline mid",
        respond('<keystrokes duration="0.1">ls</keystrokes>' + LS),
        [("ls", 0.1), ("ls\n", 0.1)],
        warning="- Command 1 should end with newline when followed by another command. Otherwise the two commands will be concatenated together on the same line.",
    ),
    Row("C-c", respond('<keystrokes duration="0.1">C-c</keystrokes>'), [("C-c", 0.1)]),
    Row("no newline last", respond('<keystrokes duration="0.1">ls</keystrokes>'), [("ls", 0.1)]),
    Row("leading newline", respond('<keystrokes duration="0.1">\nls\n</keystrokes>'), [("\nls\n", 0.1)]),
    Row(
        "entities",
        respond('<keystrokes duration="0.1">cat &lt; f &amp;&amp; ls\n</keystrokes>'),
        [("cat &lt; f &amp;&amp; ls\n", 0.1)],
        warning="- Warning: &lt; is read verbatim and not converted to <. NEVER USE &lt;, unless you want these exact characters to appear directly in the output.\n- Warning: &amp; is read verbatim and not converted to &. NEVER USE &amp;, unless you want these exact characters to appear directly in the output.",
    ),
    Row(
        "raw angle brackets",
        respond('<keystrokes duration="0.1">cat < f > g && ls\n</keystrokes>'),
        [("cat < f > g && ls\n", 0.1)],
    ),
    Row(
        "blank between angle brackets",
        respond('<keystrokes duration="0.1">echo "< >"\n</keystrokes>'),
        [],
        error="Invalid XML: there is nothing but blanks between a '<' and the next '>'; write it without the blanks",
    ),
    Row(
        "empty angle brackets",
        respond('<keystrokes duration="0.1">git diff <> f\n</keystrokes>'),
        [("git diff <> f\n", 0.1)],
    ),
    Row(
        "xml in keystrokes",
        respond('<keystrokes duration="0.1">echo "<b>x</b>"\n</keystrokes>'),
        [('echo "<b>x</b>"\n', 0.1)],
    ),
    Row("lone < in keystrokes", respond('<keystrokes duration="0.1">wc -l <f\n</keystrokes>'), [("wc -l <f\n", 0.1)]),
    Row(
        "heredoc",
        respond('<keystrokes duration="0.1">cat <<EOF\na\nEOF\n</keystrokes>'),
        [("cat <<EOF\na\nEOF\n", 0.1)],
    ),
    Row("literal backslash n", respond('<keystrokes duration="0.1">ls\\n</keystrokes>'), [("ls\\n", 0.1)]),
    Row(
        "literal backslash r n",
        respond('<keystrokes duration="0.1">ls\\r\\n</keystrokes>'),
        [("ls\\r\\n", 0.1)],
        warning="- Warning: \\r\\n line endings are not necessary - use \\n instead for simpler output",
    ),
    Row("cdata", respond('<keystrokes duration="0.1"><![CDATA[ls\n]]></keystrokes>'), [("<![CDATA[ls\n]]>", 0.1)]),
    Row("keystrokes not closed", respond('<keystrokes duration="0.1">ls\n'), []),
    Row("command tag", respond("<command>ls\n</command>"), []),
    Row("text in commands", respond("ls -la\n"), []),
    Row("empty commands", respond(""), [], warning=EMPTY),
    Row("blank commands", respond("\n"), [], warning=EMPTY),
    Row("self-closing commands", f"<response>{BOTH}<commands/></response>", [], warning=EMPTY),
    Row(
        "no commands",
        f"<response>{BOTH}</response>",
        [],
        error="Missing <commands> section",
        warning="- Missing <commands> section",
    ),
    Row(
        "no commands but complete",
        f"<response>{BOTH}<task_complete>true</task_complete></response>",
        [],
        task_complete=True,
        warning="- Missing <commands> section",
    ),
    Row("empty commands and complete", respond("", "<task_complete>true</task_complete>"), [], task_complete=True),
    Row("commands and complete", respond(LS, "<task_complete>true</task_complete>"), RUNS_LS, task_complete=True),
    Row("complete TRUE", respond("\n", "<task_complete> TRUE </task_complete>"), [], task_complete=True),
    Row("complete false", respond(LS, "<task_complete>false</task_complete>"), RUNS_LS),
    Row("complete self-closing", respond(LS, "<task_complete/>"), RUNS_LS),
    Row("complete yes", respond(LS, "<task_complete>yes</task_complete>"), RUNS_LS),
    Row("complete 1", respond(LS, "<task_complete>1</task_complete>"), RUNS_LS),
    Row(
        "complete inside keystrokes",
        respond('<keystrokes duration="1">echo "<task_complete>true</task_complete>"\n</keystrokes>'),
        [('echo "<task_complete>true</task_complete>"\n', 1.0)],
        task_complete=True,
    ),
    Row(
        "complete after response",
        respond(LS) + "<task_complete>true</task_complete>",
        RUNS_LS,
        warning="- Extra text detected after </response> tag",
    ),
    Row(
        "complete in analysis",
        "<response><analysis>I will say <task_complete>true</task_complete> later</analysis><plan>p</plan><commands>"
        + LS
        + "</commands></response>",
        RUNS_LS,
        task_complete=True,
    ),
    Row(
        "missing analysis",
        f"<response><plan>p</plan><commands>{LS}</commands></response>",
        RUNS_LS,
        warning="- Missing <analysis> section",
    ),
    Row(
        "missing plan",
        f"<response><analysis>a</analysis><commands>{LS}</commands></response>",
        RUNS_LS,
        warning="- Missing <plan> section",
    ),
    Row(
        "wrong order",
        f"<response><plan>p</plan><analysis>a</analysis><commands>{LS}</commands></response>",
        RUNS_LS,
        warning="- Sections appear in wrong order. Found: plan → analysis → commands, expected: analysis → plan → commands",
    ),
    Row(
        "two analyses",
        f"<response><analysis>a</analysis>{BOTH}<commands>{LS}</commands></response>",
        RUNS_LS,
        warning="- Multiple <analysis> sections found",
    ),
    Row(
        "two command blocks",
        f"<response>{BOTH}<commands>{LS}</commands><commands>{LS}</commands></response>",
        RUNS_LS,
        warning="- IMPORTANT: Only issue one <commands> block at a time. You issued 2 and only the first was executed.",
    ),
    Row(
        "two responses",
        respond(LS) + respond(LS),
        RUNS_LS,
        warning="- Extra text detected after </response> tag\n- IMPORTANT: Only issue one <response> block at a time. You issued 2 and only the first was executed.",
    ),
    Row(
        "unknown section",
        respond(LS, "<thought>x</thought>"),
        RUNS_LS,
        warning="- Unknown tag found: <thought>, expected analysis/plan/commands/task_complete",
    ),
    Row(
        "section with attribute",
        f'<response>{BOTH}<commands lang="sh">{LS}</commands></response>',
        [],
        error="Missing <commands> section",
        warning="- Missing <commands> section",
    ),
    Row(
        "response with attribute",
        f'<response id="1">{BOTH}<commands>{LS}</commands></response>',
        [],
        error="No <response> tag found",
    ),
    Row("upper case", f"<RESPONSE>{BOTH}<commands>{LS}</commands></RESPONSE>", [], error="No <response> tag found"),
    Row("text before", "Sure: " + respond(LS), RUNS_LS, warning="- Extra text detected before <response> tag"),
    Row("text after", respond(LS) + " done", RUNS_LS, warning="- Extra text detected after </response> tag"),
    Row(
        "fenced",
        "```xml\n" + respond(LS) + "\n```",
        RUNS_LS,
        warning="- Extra text detected before <response> tag\n- Extra text detected after </response> tag",
    ),
    Row(
        "think with tags before",
        "<think>use <response> then</think>" + respond(LS),
        RUNS_LS,
        warning="- Extra text detected before <response> tag",
    ),
    Row(
        "think before",
        "<think>hm</think>" + respond(LS),
        RUNS_LS,
        warning="- Extra text detected before <response> tag",
    ),
    Row("response not closed", f"<response>{BOTH}<commands>{LS}</commands>", RUNS_LS),
    Row(
        "commands not closed",
        f"<response>{BOTH}<commands>{LS}</response>",
        [],
        error="Missing <commands> section",
        warning="- Missing <commands> section",
    ),
    Row(
        "cut in keystrokes",
        f'<response>{BOTH}<commands><keystrokes duration="0.1">ls',
        [],
        error="Missing <commands> section",
        warning="- Missing <commands> section",
    ),
    Row(
        "cut in a tag",
        f"<response>{BOTH}<commands><keystr",
        [],
        error="Missing <commands> section",
        warning="- Missing <commands> section",
    ),
    Row(
        "closing before opening",
        "</response>" + respond(LS),
        RUNS_LS,
        warning="- Extra text detected before <response> tag\n- Extra text detected after </response> tag",
    ),
    Row("empty response", "<response></response>", [], error="No <response> tag found"),
    Row("json", '{"analysis":"a","plan":"p","commands":[]}', [], error="No <response> tag found"),
    Row("plain text", "ls -la", [], error="No <response> tag found"),
    Row("empty", "", [], error="No <response> tag found"),
    Row(
        "NUL in keystrokes",
        respond('<keystrokes duration="0.1">a\0b\n</keystrokes>'),
        [],
        error="Command 1 'keystrokes' contains a NUL character, which cannot be typed",
    ),
    Row(
        "lone surrogate",
        respond('<keystrokes duration="0.1">\ud83d\n</keystrokes>'),
        [],
        error="Command 1 'keystrokes' contains half of a surrogate pair, which is not a character",
    ),
    Row(
        "xml declaration",
        '<?xml version="1.0"?>\n' + respond(LS),
        RUNS_LS,
        warning="- Extra text detected before <response> tag",
    ),
    Row("comment", respond("<!-- list -->" + LS), RUNS_LS),
    Row("CRLF", respond('<keystrokes duration="0.1">ls\r\n</keystrokes>'), [("ls\r\n", 0.1)]),
    Row("tab and emoji", respond('<keystrokes duration="0.1">echo "é\t😀"\n</keystrokes>'), [('echo "é\t😀"\n', 0.1)]),
]
HARDENED = (
    "duration negative",
    "duration 1e9",
    "duration nan",
    "duration inf",
    "duration huge int",
    "blank between angle brackets",
    "NUL in keystrokes",
    "lone surrogate",
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
def test_verdict(row: Row) -> None:
    parsed = parse_action(row.text, format=ActionFormat.TERMINUS_XML)
    assert parsed.commands == tuple(Command(keystrokes, duration) for keystrokes, duration in row.commands)
    assert parsed.task_complete is row.task_complete
    assert parsed.error == row.error
    assert parsed.warning == row.warning


@pytest.mark.parametrize("row", [row for row in ROWS if row.case not in HARDENED], ids=lambda row: row.case)
def test_the_table_is_harbors(row: Row) -> None:
    verdict = load_harbor_parser(ActionFormat.TERMINUS_XML).parse_response(row.text)
    assert [(command.keystrokes, command.duration) for command in verdict.commands] == row.commands
    assert verdict.is_task_complete == row.task_complete
    assert (verdict.error or None, verdict.warning or None) == (row.error, row.warning)


def test_analysis_and_plan_are_kept() -> None:
    parsed = parse_terminus_xml(respond(""))
    assert (parsed.analysis, parsed.plan) == ("a", "p")


# --- hostile input ----------------------------------------------------------------------------------------------------

_TAGS = [f"<{slash}{name}>" for name in ("response", "analysis", "plan", "commands", "task_complete", "keystrokes")
         for slash in ("", "/")]  # fmt: skip
_PIECES = st.sampled_from([*_TAGS, LS, respond(LS), "<keystrokes duration=", '"1"', "'", ">", "< >", "< ", "</>", "true",
                           "\0", "\ud800", "é", "&lt;", "<!--", "nan", "9" * 5000])  # fmt: skip


@given(st.lists(_PIECES, max_size=40).map("".join) | st.text() | st.text().map(respond))
def test_any_text_gives_a_verdict(text: str) -> None:
    parsed = parse_terminus_xml(text)
    assert parsed.error is None or parsed.commands == ()
    assert isinstance(parsed.task_complete, bool)
    for shown in (parsed.error, parsed.warning, parsed.analysis, parsed.plan):
        (shown or "").encode()
    assert all(0.0 <= command.duration_sec <= 60.0 for command in parsed.commands)


_TYPED = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0<"))


@given(_TYPED, st.floats(0, 60))
def test_keystrokes_pass_unchanged(keystrokes: str, duration: float) -> None:
    parsed = parse_terminus_xml(respond(f"<keystrokes duration={json.dumps(str(duration))}>{keystrokes}</keystrokes>"))
    assert parsed.commands == (Command(keystrokes, duration),)


_PATIENCE_SEC = 60.0
"""Far beyond a linear parse of a megabyte, far below a quadratic one."""

_MEGABYTE = 1_000_000
_GARBAGE: dict[str, Callable[[], str]] = {
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
    "noise": lambda: "".join(random.Random(0).choices([*_TAGS, " ", "\n", "<", ">", '"', "a", "="], k=_MEGABYTE // 5)),
}


def parse_with_patience(text: str) -> ParsedAction:
    """Parse in a thread, so that a parse without end fails the test instead of hanging it."""
    found: list[ParsedAction] = []
    thread = threading.Thread(target=lambda: found.append(parse_terminus_xml(text)), daemon=True)
    thread.start()
    thread.join(_PATIENCE_SEC)
    assert found, f"still parsing {len(text)} characters that begin with {text[:40]!r}"
    return found[0]


@pytest.mark.parametrize("name", _GARBAGE)
def test_a_megabyte_of_garbage_runs_nothing(name: str) -> None:
    parsed = parse_with_patience(_GARBAGE[name]())
    assert parsed.commands == () or name == "noise"
    assert len(parsed.error or "") < 3000


def test_a_megabyte_of_keystrokes_is_read() -> None:
    keystrokes = "<keystrokes >" * (_MEGABYTE // 13)
    assert parse_with_patience(respond(f'<keystrokes duration="1">{keystrokes}</keystrokes>')).commands == (
        Command(keystrokes, 1.0),
    )


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
