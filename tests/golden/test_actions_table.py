"""What terminus-json-plain accepts: one row per case, read off Harbor's own parser.

Rows that name our hardening differ from Harbor on purpose; every other verdict is Harbor's, word for word.
"""

# The inputs are quoted exactly as a model writes them.
# ruff: noqa: E501

from dataclasses import dataclass

import pytest

from harbor_gym.formats import parse_terminus_json
from harbor_gym.types import Command


@dataclass(frozen=True)
class Row:
    """One message and what becomes of it."""

    case: str
    text: str
    commands: list[tuple[str, float]]
    task_complete: bool
    error: str | None = None
    warning: str | None = None


ROWS = [
    Row(
        "min ok",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":0.1}]}',
        [("ls\n", 0.1)],
        False,
    ),
    Row(
        "no duration",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n"}]}',
        [("ls\n", 1.0)],
        False,
        warning="- Command 1: Missing duration field, using default 1.0",
    ),
    Row(
        "duration string",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":"2"}]}',
        [("ls\n", 1.0)],
        False,
        warning="- Command 1: Invalid duration value, using default 1.0",
    ),
    Row(
        "duration null",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":null}]}',
        [("ls\n", 1.0)],
        False,
        warning="- Command 1: Invalid duration value, using default 1.0",
    ),
    Row(
        "duration true(bool)",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":true}]}',
        [("ls\n", 1.0)],
        False,
    ),
    Row(
        "duration negative",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":-5}]}',
        [("ls\n", 0.0)],
        False,
    ),
    Row(
        "duration 1e9",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1e9}]}',
        [("ls\n", 60.0)],
        False,
    ),
    Row(
        "duration NaN",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":NaN}]}',
        [("ls\n", 1.0)],
        False,
    ),
    Row(
        "duration Infinity",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":Infinity}]}',
        [("ls\n", 60.0)],
        False,
    ),
    Row(
        "duration int 1",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}]}',
        [("ls\n", 1.0)],
        False,
    ),
    Row(
        "huge int duration",
        '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\\n","duration":1' + "0" * 400 + "}]}",
        [],
        False,
        error="Invalid JSON: a value cannot be read (int too large to convert to float)",
    ),
    Row("empty commands", '{"analysis":"a","plan":"p","commands":[]}', [], False),
    Row(
        "empty keystrokes",
        '{"analysis":"a","plan":"p","commands":[{"keystrokes":"","duration":5}]}',
        [("", 5.0)],
        False,
    ),
    Row(
        "no newline last",
        '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":0.1}]}',
        [("ls", 0.1)],
        False,
    ),
    Row(
        "no newline mid",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls","duration":0.1},{"keystrokes":"pwd\n","duration":0.1}]}',
        [("ls", 0.1), ("pwd\n", 0.1)],
        False,
        warning="- Command 1 should end with newline when followed by another command. Otherwise the two commands will be concatenated together on the same line.",
    ),
    Row(
        "C-c mid",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"C-c","duration":0.1},{"keystrokes":"pwd\n","duration":0.1}]}',
        [("C-c", 0.1), ("pwd\n", 0.1)],
        False,
        warning="- Command 1 should end with newline when followed by another command. Otherwise the two commands will be concatenated together on the same line.",
    ),
    Row(
        "unknown cmd field",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1,"is_blocking":true}]}',
        [("ls\n", 1.0)],
        False,
        warning="- Command 1: Unknown fields: is_blocking",
    ),
    Row("unknown top field", '{"analysis":"a","plan":"p","commands":[],"foo":1}', [], False),
    Row("missing analysis", '{"plan":"p","commands":[]}', [], False, error="Missing required fields: analysis"),
    Row("missing all", "{}", [], False, error="Missing required fields: analysis, plan, commands"),
    Row(
        "missing commands but complete",
        '{"analysis":"a","plan":"p","task_complete":true}',
        [],
        False,
        error="Missing required fields: commands",
    ),
    Row(
        "wrong order",
        '{"commands":[],"plan":"p","analysis":"a"}',
        [],
        False,
        warning="- Fields appear in wrong order. Found: commands → plan → analysis, expected: analysis → plan → commands",
    ),
    Row(
        "analysis non-string",
        '{"analysis":1,"plan":null,"commands":[]}',
        [],
        False,
        warning="- Field 'analysis' should be a string\n- Field 'plan' should be a string",
    ),
    Row(
        "commands is dict",
        r'{"analysis":"a","plan":"p","commands":{"keystrokes":"ls\n"}}',
        [],
        False,
        error="Field 'commands' must be an array",
    ),
    Row(
        "command is string",
        r'{"analysis":"a","plan":"p","commands":["ls\n"]}',
        [],
        False,
        error="Command 1 must be an object",
    ),
    Row(
        "bad second command",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1},{"duration":1}]}',
        [],
        False,
        error="Command 2 missing required 'keystrokes' field",
    ),
    Row(
        "bad cmd + complete",
        '{"analysis":"a","plan":"p","commands":[{"duration":1}],"task_complete":true}',
        [],
        True,
        warning="- Command 1 missing required 'keystrokes' field",
    ),
    Row(
        "commands dict + complete",
        '{"analysis":"a","plan":"p","commands":{},"task_complete":true}',
        [],
        False,
        error="Field 'commands' must be an array",
    ),
    Row(
        "keystrokes list",
        '{"analysis":"a","plan":"p","commands":[{"keystrokes":["ls"],"duration":1}]}',
        [],
        False,
        error="Command 1 'keystrokes' must be a string",
    ),
    Row(
        "tc true+cmds",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}],"task_complete":true}',
        [("ls\n", 1.0)],
        True,
    ),
    Row("tc 'true'", '{"analysis":"a","plan":"p","commands":[],"task_complete":"True"}', [], True),
    Row("tc 'yes'", '{"analysis":"a","plan":"p","commands":[],"task_complete":"yes"}', [], True),
    Row("tc 'no'", '{"analysis":"a","plan":"p","commands":[],"task_complete":"no"}', [], False),
    Row(
        "tc 1",
        '{"analysis":"a","plan":"p","commands":[],"task_complete":1}',
        [],
        True,
        warning="- Field 'task_complete' should be a boolean or string",
    ),
    Row("tc null", '{"analysis":"a","plan":"p","commands":[],"task_complete":null}', [], False),
    Row(
        "tc []",
        '{"analysis":"a","plan":"p","commands":[],"task_complete":[]}',
        [],
        False,
        warning="- Field 'task_complete' should be a boolean or string",
    ),
    Row(
        "tc [0]",
        '{"analysis":"a","plan":"p","commands":[],"task_complete":[0]}',
        [],
        True,
        warning="- Field 'task_complete' should be a boolean or string",
    ),
    Row(
        "fenced",
        '```json\n{"analysis":"a","plan":"p","commands":[]}\n```',
        [],
        False,
        warning="- Extra text detected before JSON object\n- Extra text detected after JSON object",
    ),
    Row(
        "text before",
        'Sure: {"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        warning="- Extra text detected before JSON object",
    ),
    Row(
        "text after",
        '{"analysis":"a","plan":"p","commands":[]} done',
        [],
        False,
        warning="- Extra text detected after JSON object",
    ),
    Row(
        "two objects",
        r'{"analysis":"a","plan":"p","commands":[]}{"analysis":"a","plan":"p","commands":[{"keystrokes":"x\n","duration":1}]}',
        [],
        False,
        warning="- Extra text detected after JSON object",
    ),
    Row(
        "empty object first",
        '{} {"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        error="Missing required fields: analysis, plan, commands",
        warning="- Extra text detected after JSON object",
    ),
    Row(
        "think tag w/ braces before",
        '<think>use {x} then</think>{"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        warning="- AUTO-CORRECTED: Extracted JSON from mixed content - please fix this in future responses",
    ),
    Row(
        "think tag w/ odd quote",
        '<think>the 5" disk</think>{"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        warning="- AUTO-CORRECTED: Extracted JSON from mixed content - please fix this in future responses",
    ),
    Row(
        "apostrophes in text",
        'I\'ll do it. {"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        warning="- Extra text detected before JSON object",
    ),
    Row(
        "missing brace",
        '{"analysis":"a","plan":"p","commands":[]',
        [],
        False,
        warning="- AUTO-CORRECTED: Fixed incomplete JSON by adding missing closing brace - please fix this in future responses",
    ),
    Row(
        "missing bracket+brace",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":1}',
        [],
        False,
        error="No valid JSON found in response",
        warning="- No valid JSON object found",
    ),
    Row(
        "truncated in string",
        '{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls',
        [],
        False,
        error="No valid JSON found in response",
        warning="- No valid JSON object found",
    ),
    Row(
        "trailing comma",
        '{"analysis":"a","plan":"p","commands":[],}',
        [],
        False,
        error='Invalid JSON: Expecting property name enclosed in double quotes: line 1 column 42 (char 41) | Content: \'{"analysis":"a","plan":"p","commands":[],}\'',
    ),
    Row(
        "single quotes",
        "{'analysis':'a','plan':'p','commands':[]}",
        [],
        False,
        error="Invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) | Content: \"{'analysis':'a','plan':'p','commands':[]}\"",
    ),
    Row(
        "raw newline in string",
        '{"analysis":"a\nb","plan":"p","commands":[]}',
        [],
        False,
        error=r"""Invalid JSON: Invalid control character at: line 1 column 15 (char 14) | Content: '{"analysis":"a\nb","plan":"p","commands":[]}'""",
    ),
    Row(
        "bad escape \\d",
        r'{"analysis":"a \d","plan":"p","commands":[]}',
        [],
        False,
        error=r"""Invalid JSON: Invalid \escape: line 1 column 16 (char 15) | Content: '{"analysis":"a \\d","plan":"p","commands":[]}'""",
    ),
    Row(
        "ctrl-c as \\u0003",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\u0003","duration":0.1}]}',
        [("\x03", 0.1)],
        False,
    ),
    Row(
        "\\x03 escape",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\x03","duration":0.1}]}',
        [],
        False,
        error=r"""Invalid JSON: Invalid \escape: line 1 column 55 (char 54) | Content: '{"analysis":"a","plan":"p","commands":[{"keystrokes":"\\x03","duration":0.1}]}'""",
    ),
    Row(
        "lone surrogate",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"\ud83d\n","duration":0.1}]}',
        [],
        False,
        error="Command 1 'keystrokes' contains half of a surrogate pair, which is not a character",
    ),
    Row(
        "NUL in keystrokes",
        r'{"analysis":"a","plan":"p","commands":[{"keystrokes":"a\u0000b\n","duration":0.1}]}',
        [],
        False,
        error="Command 1 'keystrokes' contains a NUL character, which cannot be typed",
    ),
    Row(
        "array top",
        r'[{"keystrokes":"ls\n"}]',
        [],
        False,
        error="Missing required fields: analysis, plan, commands",
        warning="- Extra text detected before JSON object\n- Extra text detected after JSON object",
    ),
    Row(
        "plain text",
        "ls -la",
        [],
        False,
        error="No valid JSON found in response",
        warning="- No valid JSON object found",
    ),
    Row("empty", "", [], False, error="No valid JSON found in response", warning="- No valid JSON object found"),
    Row("null", "null", [], False, error="No valid JSON found in response", warning="- No valid JSON object found"),
    Row(
        "python True",
        '{"analysis":"a","plan":"p","commands":[],"task_complete":True}',
        [],
        False,
        error='Invalid JSON: Expecting value: line 1 column 58 (char 57) | Content: \'{"analysis":"a","plan":"p","commands":[],"task_complete":True}\'',
    ),
    Row(
        "duplicate keys",
        r'{"analysis":"a","plan":"p","commands":[],"commands":[{"keystrokes":"x\n","duration":1}]}',
        [("x\n", 1.0)],
        False,
    ),
    Row(
        "bad first obj valid second",
        'e.g. {"keystrokes":"x"} so {"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        error="Missing required fields: analysis, plan, commands",
        warning="- Extra text detected before JSON object\n- Extra text detected after JSON object",
    ),
    Row(
        "braces in keystrokes",
        r"""{"analysis":"a","plan":"p","commands":[{"keystrokes":"awk '{print $1}' f\n","duration":1}]}""",
        [("awk '{print $1}' f\n", 1.0)],
        False,
    ),
    Row(
        "missing brace with braces in str",
        '{"analysis":"see }","plan":"p","commands":[]',
        [],
        False,
        error="No valid JSON found in response",
        warning="- No valid JSON object found",
    ),
    Row(
        "comments",
        '{"analysis":"a","plan":"p","commands":[] /* x */}',
        [],
        False,
        error='Invalid JSON: Expecting \',\' delimiter: line 1 column 42 (char 41) | Content: \'{"analysis":"a","plan":"p","commands":[] /* x */}\'',
    ),
    Row(
        "BOM",
        '\ufeff{"analysis":"a","plan":"p","commands":[]}',
        [],
        False,
        warning="- Extra text detected before JSON object",
    ),
]


def test_the_table_is_whole() -> None:
    assert len({row.case for row in ROWS}) == 67


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
def test_verdict(row: Row) -> None:
    parsed = parse_terminus_json(row.text)
    assert parsed.commands == tuple(Command(keystrokes, duration) for keystrokes, duration in row.commands)
    assert parsed.task_complete is row.task_complete
    assert parsed.error == row.error
    assert parsed.warning == row.warning
