"""Terminus-2's two formats beside Harbor's own parsers: the same verdict, word for word, but for the hardening."""

# The messages are quoted exactly as a model writes them.
# ruff: noqa: E501

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.formats import ActionFormat, ParsedAction, parse_action
from harbor_gym.formats.harbor_parser import load_harbor_parser
from harbor_gym.types import Command

JSON, XML = ActionFormat.TERMINUS_JSON, ActionFormat.TERMINUS_XML
LANGUAGES = {JSON: "JSON", XML: "XML"}

BOTH = "<analysis>a</analysis><plan>p</plan>"
LS = '<keystrokes duration="0.1">ls\n</keystrokes>'


def respond(commands: str, rest: str = "") -> str:
    """Return a whole message in XML."""
    return f"<response>{BOTH}<commands>{commands}</commands>{rest}</response>"


JSON_MESSAGES = [
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n"}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":"2"}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":null}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":true}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":-5}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1e9}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":NaN}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":Infinity}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}]}',
    '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\\n","duration":1' + "0" * 400 + "}]}",
    '{"analysis":"a","plan":"p","commands":[]}',
    '{"analysis":"a","plan":"p","commands":[{"keystrokes":"","duration":5}]}',
    '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":0.1},{"keystrokes":"pwd\n","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"C-c","duration":0.1},{"keystrokes":"pwd\n","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1,"is_blocking":true}]}',
    '{"analysis":"a","plan":"p","commands":[],"foo":1}',
    '{"plan":"p","commands":[]}',
    "{}",
    '{"analysis":"a","plan":"p","task_complete":true}',
    '{"commands":[],"plan":"p","analysis":"a"}',
    '{"analysis":1,"plan":null,"commands":[]}',
    r'{"analysis":"a","plan":"p","commands":{"keystrokes":"ls\n"}}',
    r'{"analysis":"a","plan":"p","commands":["ls\n"]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1},{"duration":1}]}',
    '{"analysis":"a","plan":"p","commands":[{"duration":1}],"task_complete":true}',
    '{"analysis":"a","plan":"p","commands":{},"task_complete":true}',
    '{"analysis":"a","plan":"p","commands":[{"keystrokes":["ls"],"duration":1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}],"task_complete":true}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":"True"}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":"yes"}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":"no"}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":1}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":null}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":[]}',
    '{"analysis":"a","plan":"p","commands":[],"task_complete":[0]}',
    '```json\n{"analysis":"a","plan":"p","commands":[]}\n```',
    'Sure: {"analysis":"a","plan":"p","commands":[]}',
    '{"analysis":"a","plan":"p","commands":[]} done',
    r'{"analysis":"a","plan":"p","commands":[]}{"analysis":"a","plan":"p","commands":[{"keystrokes":"x\n","duration":1}]}',
    '{} {"analysis":"a","plan":"p","commands":[]}',
    '<think>use {x} then</think>{"analysis":"a","plan":"p","commands":[]}',
    '<think>the 5" disk</think>{"analysis":"a","plan":"p","commands":[]}',
    'I\'ll do it. {"analysis":"a","plan":"p","commands":[]}',
    '{"analysis":"a","plan":"p","commands":[]',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}',
    '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls',
    '{"analysis":"a","plan":"p","commands":[],}',
    "{'analysis':'a','plan':'p','commands':[]}",
    '{"analysis":"a\nb","plan":"p","commands":[]}',
    r'{"analysis":"a \d","plan":"p","commands":[]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\u0003","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\x03","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\ud83d\n","duration":0.1}]}',
    r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"a\u0000b\n","duration":0.1}]}',
    r'[{"keystrokes":"ls\n"}]',
    "ls -la",
    "",
    "null",
    '{"analysis":"a","plan":"p","commands":[],"task_complete":True}',
    r'{"analysis":"a","plan":"p","commands":[],"commands":[{"keystrokes":"x\n","duration":1}]}',
    'e.g. {"keystrokes":"x"} so {"analysis":"a","plan":"p","commands":[]}',
    r"""{"analysis":"a","plan":"p","commands":[{"keystrokes":"awk '{print $1}' f\n","duration":1}]}""",
    '{"analysis":"see }","plan":"p","commands":[]',
    '{"analysis":"a","plan":"p","commands":[] /* x */}',
    '\ufeff{"analysis":"a","plan":"p","commands":[]}',
]
XML_MESSAGES = [
    respond(LS),
    "<response>\n<analysis>\na\n</analysis>\n<plan>\np\n</plan>\n<commands>\n" + LS + "\n</commands>\n</response>",
    respond("<keystrokes>ls\n</keystrokes>"),
    respond("<keystrokes duration='2'>ls\n</keystrokes>"),
    respond("<keystrokes duration=2>ls\n</keystrokes>"),
    respond('<keystrokes duration="soon">ls\n</keystrokes>'),
    respond('<keystrokes duration="">ls\n</keystrokes>'),
    respond('<keystrokes duration="-5">ls\n</keystrokes>'),
    respond('<keystrokes duration="1e9">ls\n</keystrokes>'),
    respond('<keystrokes duration="nan">ls\n</keystrokes>'),
    respond('<keystrokes duration="inf">ls\n</keystrokes>'),
    respond('<keystrokes duration="1' + "0" * 400 + '">ls\n</keystrokes>'),
    respond('<keystrokes duration="1" block="true">ls\n</keystrokes>'),
    respond('<keystrokes duration="5"></keystrokes>'),
    respond('<keystrokes duration="5"/>'),
    respond(LS + '<keystrokes duration="0.1">pwd\n</keystrokes>'),
    respond('<keystrokes duration="0.1">ls</keystrokes>' + LS),
    respond('<keystrokes duration="0.1">C-c</keystrokes>'),
    respond('<keystrokes duration="0.1">ls</keystrokes>'),
    respond('<keystrokes duration="0.1">\nls\n</keystrokes>'),
    respond('<keystrokes duration="0.1">cat &lt; f &amp;&amp; ls\n</keystrokes>'),
    respond('<keystrokes duration="0.1">cat < f > g && ls\n</keystrokes>'),
    respond('<keystrokes duration="0.1">echo "< >"\n</keystrokes>'),
    respond('<keystrokes duration="0.1">git diff <> f\n</keystrokes>'),
    respond('<keystrokes duration="0.1">echo "<b>x</b>"\n</keystrokes>'),
    respond('<keystrokes duration="0.1">wc -l <f\n</keystrokes>'),
    respond('<keystrokes duration="0.1">cat <<EOF\na\nEOF\n</keystrokes>'),
    respond('<keystrokes duration="0.1">ls\\n</keystrokes>'),
    respond('<keystrokes duration="0.1">ls\\r\\n</keystrokes>'),
    respond('<keystrokes duration="0.1"><![CDATA[ls\n]]></keystrokes>'),
    respond('<keystrokes duration="0.1">ls\n'),
    respond("<command>ls\n</command>"),
    respond("ls -la\n"),
    respond(""),
    respond("\n"),
    f"<response>{BOTH}<commands/></response>",
    f"<response>{BOTH}</response>",
    f"<response>{BOTH}<task_complete>true</task_complete></response>",
    respond("", "<task_complete>true</task_complete>"),
    respond(LS, "<task_complete>true</task_complete>"),
    respond("\n", "<task_complete> TRUE </task_complete>"),
    respond(LS, "<task_complete>false</task_complete>"),
    respond(LS, "<task_complete/>"),
    respond(LS, "<task_complete>yes</task_complete>"),
    respond(LS, "<task_complete>1</task_complete>"),
    respond('<keystrokes duration="1">echo "<task_complete>true</task_complete>"\n</keystrokes>'),
    respond(LS) + "<task_complete>true</task_complete>",
    "<response><analysis>I will say <task_complete>true</task_complete> later</analysis><plan>p</plan><commands>"
    + LS
    + "</commands></response>",
    f"<response><plan>p</plan><commands>{LS}</commands></response>",
    f"<response><analysis>a</analysis><commands>{LS}</commands></response>",
    f"<response><plan>p</plan><analysis>a</analysis><commands>{LS}</commands></response>",
    f"<response><analysis>a</analysis>{BOTH}<commands>{LS}</commands></response>",
    f"<response>{BOTH}<commands>{LS}</commands><commands>{LS}</commands></response>",
    respond(LS) + respond(LS),
    respond(LS, "<thought>x</thought>"),
    f'<response>{BOTH}<commands lang="sh">{LS}</commands></response>',
    f'<response id="1">{BOTH}<commands>{LS}</commands></response>',
    f"<RESPONSE>{BOTH}<commands>{LS}</commands></RESPONSE>",
    "Sure: " + respond(LS),
    respond(LS) + " done",
    "```xml\n" + respond(LS) + "\n```",
    "<think>use <response> then</think>" + respond(LS),
    "<think>hm</think>" + respond(LS),
    f"<response>{BOTH}<commands>{LS}</commands>",
    f"<response>{BOTH}<commands>{LS}</response>",
    f'<response>{BOTH}<commands><keystrokes duration="0.1">ls',
    f"<response>{BOTH}<commands><keystr",
    "</response>" + respond(LS),
    "<response></response>",
    '{"analysis":"a","plan":"p","commands":[]}',
    "ls -la",
    "",
    respond('<keystrokes duration="0.1">a\0b\n</keystrokes>'),
    respond('<keystrokes duration="0.1">\ud83d\n</keystrokes>'),
    '<?xml version="1.0"?>\n' + respond(LS),
    respond("<!-- list -->" + LS),
    respond('<keystrokes duration="0.1">ls\r\n</keystrokes>'),
    respond('<keystrokes duration="0.1">echo "é\t😀"\n</keystrokes>'),
]
LISTED = [*((JSON, text) for text in JSON_MESSAGES), *((XML, text) for text in XML_MESSAGES)]

JSON_PIECES = ["{", "}", "[", "]", '"', "\\", ",", ":", "\n", "\0", "\ud800", "é", "1e999", "NaN", "-", "9" * 5000, "analysis",
               '"analysis":', '"plan":"p",', '"commands":[', '{"keystrokes":"ls\\n"', ',"duration":', "true", "null", "```json\n"]  # fmt: skip
XML_TAGS = [f"<{slash}{name}>" for name in ("response", "analysis", "plan", "commands", "task_complete", "keystrokes")
            for slash in ("", "/")]  # fmt: skip
XML_PIECES = [LS, respond(LS), "<keystrokes duration=", '"1"', "'", ">", "< >", "< ", "</>", "true", "\0", "\ud800", "é", "&lt;",
              "<!--", "nan", "9" * 200, *XML_TAGS]  # fmt: skip
"""40 of them make no tag of a length that we refuse and Harbor reads."""


def check_beside_harbors(text: str, action_format: ActionFormat) -> ParsedAction:
    """Compare our verdict on a message with that of Harbor's parser, and return ours."""
    parsed = parse_action(text, format=action_format)
    try:
        verdict = load_harbor_parser(action_format).parse_response(text)
    except Exception:  # any error of Harbor's parser is a parse error with us
        assert (parsed.error or "").startswith(f"Invalid {LANGUAGES[action_format]}: ")
        assert (parsed.commands, parsed.task_complete) == ((), False)
        return parsed
    error, warning = _sendable(verdict.error), _sendable(verdict.warning)
    commands = [Command(item.keystrokes, _clamped(item.duration)) for item in verdict.commands]
    problem = next(filter(None, (_untypable(item.keystrokes) for item in commands)), None)
    is_complete = bool(verdict.is_task_complete) and not error
    if problem and not error:
        told = parsed.warning if is_complete else parsed.error
        assert problem in (told or "")
        commands = []
        error, warning = (error, parsed.warning) if is_complete else (parsed.error, warning)
    assert (parsed.error, parsed.warning, parsed.task_complete) == (error, warning, is_complete)
    assert parsed.commands == tuple([] if error else commands)
    for section in ("analysis", "plan"):
        said = getattr(verdict, section)
        assert getattr(parsed, section) == (_sendable(said) or "" if isinstance(said, str) else "")
    return parsed


def _sendable(text: str) -> str | None:
    return text.encode(errors="replace").decode() or None


def _clamped(duration: float) -> float:
    return 1.0 if math.isnan(duration) else float(min(max(duration, 0.0), 60.0))


def _untypable(keystrokes: str) -> str | None:
    if "\0" in keystrokes:
        return "contains a NUL character"
    return "contains half of a surrogate pair" if _sendable(keystrokes) != (keystrokes or None) else None


@pytest.mark.parametrize(("action_format", "text"), LISTED)
def test_a_listed_message(action_format: ActionFormat, text: str) -> None:
    check_beside_harbors(text, action_format)


@given(st.lists(st.sampled_from(JSON_PIECES), max_size=40).map("".join) | st.text())
def test_any_text_as_json(text: str) -> None:
    check_beside_harbors(text, JSON)


@given(st.lists(st.sampled_from(XML_PIECES), max_size=40).map("".join) | st.text() | st.text().map(respond))
def test_any_text_as_xml(text: str) -> None:
    check_beside_harbors(text, XML)


@pytest.mark.parametrize(
    ("action_format", "text", "error", "commands"),
    [
        (JSON, '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":1' + "0" * 400 + "}]}", "too large to convert", []),
        (JSON, r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"a\u0000b"}]}', "Command 1 'keystrokes' contains a NUL character, which", []),
        (JSON, r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\ud83d"}]}', "Command 1 'keystrokes' contains half of a surrogate pair", []),
        (JSON, '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":NaN}]}', None, [("ls", 1.0)]),
        (XML, respond('<keystrokes duration="0.1">echo "< >"\n</keystrokes>'), "nothing but blanks between a '<' and the next '>'", []),
        (XML, respond('<keystrokes duration="-5">ls\n</keystrokes>'), None, [("ls\n", 0.0)]),
        (XML, respond('<keystrokes duration="1e9">ls\n</keystrokes>'), None, [("ls\n", 60.0)]),
        (XML, respond('<keystrokes duration="nan">ls\n</keystrokes>'), None, [("ls\n", 1.0)]),
    ],
)  # fmt: skip
def test_the_hardening(
    action_format: ActionFormat, text: str, error: str | None, commands: Sequence[tuple[str, float]]
) -> None:
    """Differences from Harbor on purpose, in its own words."""
    parsed = check_beside_harbors(text, action_format)
    assert parsed.commands == tuple(Command(keystrokes, duration) for keystrokes, duration in commands)
    assert error is None if parsed.error is None else error is not None and error in parsed.error
