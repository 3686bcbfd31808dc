"""Tool calls and raw keystrokes as actions, and the prompt's text about each format."""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym import TerminalEnvConfig
from harbor_gym.formats import ActionFormat, ParsedAction, parse, parse_action, parse_tool_call, prompts
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.types import Command

LS = Command("ls\n", 60.0)
CALL = '{"name": "bash", "arguments": {"command": "ls"}}'
SUBMIT = '{"name": "submit", "arguments": {}}'


def call(**arguments: object) -> str:
    return json.dumps({"name": "bash", "arguments": arguments})


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in calls)


def read(text: str) -> ParsedAction:
    return parse_action(text, format=ActionFormat.BASH_TOOL)


# --- the shapes a tool call comes in ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n{CALL}\n",
        f"[{CALL}]",
        f"```json\n{CALL}\n```",
        hermes(CALL),
        f"<think>use {{x}} and [y]</think>\n{hermes(CALL)}",
        f"I will look around.\n{hermes(CALL)}\n",
        '{"name": "bash", "parameters": {"command": "ls"}}',
        '{"type": "tool_use", "id": "1", "name": "bash", "input": {"command": "ls"}}',
        '{"type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}',
        json.dumps({"name": "bash", "arguments": json.dumps({"command": "ls"})}),
        json.dumps({"tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "ls"}'}}]}),
    ],
)
def test_one_call(text: str) -> None:
    parsed = read(text)
    assert (parsed.commands, parsed.task_complete, parsed.error, parsed.warning) == ((LS,), False, None, None)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"Sure: {CALL}", "- Extra text detected before the tool call"),
        (f"{CALL} done", "- Extra text detected after the tool call"),
        (f"<tool_call>{CALL}", "- A <tool_call> was not closed by </tool_call> right after its JSON object"),
        (call(command="ls", timeout="5"), "- Call 1: timeout is not a number, using default 60"),
        (call(command="ls", timeout=True), "- Call 1: timeout is not a number, using default 60"),
        (call(command="ls", restart=True, cwd="/"), "- Call 1: unknown arguments: cwd, restart"),
    ],
)
def test_what_is_tolerated_is_reported(text: str, warning: str) -> None:
    parsed = read(text)
    assert (parsed.commands, parsed.error, parsed.warning) == ((LS,), None, warning)


def test_a_fenced_block_is_read_where_there_is_no_call() -> None:
    parsed = read("Listing.\n```bash\nls {a,b}\nif x; then\n  [ y ]\nfi\n```\n")
    assert parsed.commands == (Command("ls {a,b}\nif x; then\n  [ y ]\nfi\n", 60.0),)
    assert parsed.warning is not None
    assert "fenced" in parsed.warning


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ls -la", "No tool call found"),
        ("", "No tool call found"),
        ("[]", "No tool call found"),
        ("null", "No tool call found"),
        ("[1]", 'Call 1 has no "name"'),
        ('{"command": "ls"}', 'Call 1 has no "name"'),
        ('{"name": "python", "arguments": {}}', "Call 1: unknown tool 'python'; the tools are bash and submit"),
        ('{"name": "bash"}', 'Call 1: bash needs "command", a string'),
        (call(command=["ls"]), 'Call 1: bash needs "command", a string'),
        ('{"name": "bash", "arguments": ["ls"]}', 'Call 1: "arguments" must be an object'),
        ('{"name": "bash", "arguments": "ls"}', "Invalid JSON in a tool call: Expecting value"),
        ('{"name": "bash", "arguments": {"command": "ls', "Invalid JSON in a tool call: Unterminated string"),
        (
            '{"name": "bash", "arguments": {"command": "a\nb"}}',
            "Invalid JSON in a tool call: Invalid control character",
        ),
        ("<tool_call>ls</tool_call>", "Call 1: unknown tool 'ls'"),
        (f"<tool_call>ls</tool_call>{CALL}", "A tool call could not be read as <arg_key>"),
        (f"<tool_call>ls -la</tool_call>{CALL}", "Invalid JSON in a tool call: Expecting value"),
        (hermes(CALL, '{"name": "bash"}'), "Call 2: bash needs"),
        ("```bash\nls\n```\n```bash\npwd\n```", "Found 2 fenced blocks"),
        ("```bash\nls\n", "No tool call found"),
        (call(command="a\0b"), "Command 1 'keystrokes' contains a NUL"),
        (call(command="\ud83d"), "Command 1 'keystrokes' contains half of a surrogate pair"),
        ('{"name":' + "[" * 100_000, "Invalid JSON in a tool call: nested too deeply"),
        ('{"name": 1' + "0" * 5000 + "}", "Invalid JSON in a tool call: Exceeds the limit"),
    ],
)
def test_what_cannot_be_read_runs_nothing(text: str, error: str) -> None:
    parsed = read(text)
    assert (parsed.commands, parsed.task_complete) == ((), False)
    assert (parsed.error or "").startswith(error)


# --- the forms of other families --------------------------------------------------------------------------------------


def in_form(form: str, **arguments: Any) -> str:
    """Return a call of bash, or of submit where there are no arguments, as a family's models write it."""
    name = "bash" if arguments else "submit"
    match form:
        case "qwen3-coder":
            pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
            return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"
        case "glm":
            pairs = "".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()
            )
            return f"<tool_call>{name}\n{pairs}</tool_call>"
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"
        case "mistral, a list":
            return f"[TOOL_CALLS] [{json.dumps({'name': name, 'arguments': arguments})}]"
        case _:
            return f"<|python_tag|>{json.dumps({'name': name, 'parameters': arguments})}"


FORMS = ("qwen3-coder", "glm", "mistral", "mistral, a list", "llama")
AWKWARD = "cat > Makefile <<'E'\nall:\n\techo \"hi! $HOME\" && ls\nE"


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_another_familys_form(form: str) -> None:
    parsed = read(in_form(form, command=AWKWARD, timeout=5))
    assert (parsed.commands, parsed.error, parsed.warning) == ((Command(f"{AWKWARD}\n", 5.0),), None, None)
    parsed = read(f"<think>I look.</think>\n{in_form(form)}")
    assert (parsed.commands, parsed.task_complete, parsed.error, parsed.analysis) == ((), True, None, "I look.")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", [f"echo '{hermes(CALL)}'", *(f"echo '{in_form(form)}'" for form in FORMS)])
def test_a_command_may_hold_a_call_of_any_form(form: str, command: str) -> None:
    for text in (in_form(form, command=command), hermes(call(command=command)), call(command=command)):
        assert read(text).commands == (Command(f"{command}\n", 60.0),), text


@pytest.mark.parametrize("form", ["qwen3-coder", "glm", "mistral"])
def test_several_calls_in_another_form(form: str) -> None:
    parsed = read("\n".join([in_form(form, command="ls"), in_form(form, command="pwd", timeout=1), in_form(form)]))
    assert (parsed.commands, parsed.task_complete) == ((LS, Command("pwd\n", 1.0)), True)


@pytest.mark.parametrize(
    "text",
    [
        "<function=bash>\n<parameter=command>\nls",
        f"{in_form('qwen3-coder', command='ls')}<function=bash>\n<parameter=command>\nls",
        "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls",
        "[TOOL_CALLS]bash[ARGS]{",
        "<|python_tag|>ls",
    ],
)
def test_a_call_in_another_form_that_is_cut_runs_nothing(text: str) -> None:
    parsed = read(text)
    assert parsed.commands == ()
    assert (parsed.error or "").startswith("A tool call could not be read as ")


# --- typed keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "keystrokes"),
    [("ls", "ls\n"), ("ls\n", "ls\n"), ("", ""), ("C-c", "C-c\n"), ("cat <<E\na\n\tb \nE", "cat <<E\na\n\tb \nE\n")],
)
def test_a_command_is_typed_with_enter_after_it(command: str, keystrokes: str) -> None:
    assert read(call(command=command, timeout=5)).commands == (Command(keystrokes, 5.0),)


@pytest.mark.parametrize(
    ("timeout", "expected"), [("-1", 0.0), ("1e9", 60.0), ("NaN", 1.0), ("1" + "0" * 400, 60.0), ("null", 60.0)]
)
def test_timeouts_are_clamped(timeout: str, expected: float) -> None:
    text = f'{{"name": "bash", "arguments": {{"command": "ls", "timeout": {timeout}}}}}'
    assert read(text).commands == (Command("ls\n", expected),)


@pytest.mark.parametrize(
    "command",
    ["<tool_call>", "</tool_call>", f"echo '<tool_call>{CALL}</tool_call>' > f", "<think>", "</think>", "```bash"],
)
def test_a_command_may_hold_what_else_is_read(command: str) -> None:
    bare = call(command=command)
    expected = (Command(f"{command}\n", 60.0),)
    for text in (bare, hermes(bare), f"[{bare}]", f"```json\n{bare}\n```", f" {bare}\n"):
        assert (read(text).commands, read(text).error) == (expected, None), text


def test_a_tag_counts_wherever_it_is_no_part_of_a_bare_call() -> None:
    for before in ("as {x} says: ", '{"note": 1} ', '["<tool_call>"] ', f"{call(command='<tool_call>')} "):
        parsed = read(f"{before}{hermes(CALL, CALL)}")
        assert (parsed.commands, parsed.error) == ((LS, LS), None), before


def test_several_calls_run_in_order() -> None:
    first, second = call(command="echo '</tool_call>'"), call(command="pwd", timeout=1)
    assert read(hermes(first, second)).commands == (Command("echo '</tool_call>'\n", 60.0), Command("pwd\n", 1.0))


@pytest.mark.parametrize("name", ["submit", "finish", "task_complete"])
def test_a_completing_call_completes(name: str) -> None:
    for text in (json.dumps({"name": name}), hermes(json.dumps({"name": name, "arguments": {"result": 1}}))):
        assert (read(text).commands, read(text).task_complete, read(text).error) == ((), True, None)


def test_calls_after_a_completing_one_are_ignored() -> None:
    parsed = read(hermes(CALL, SUBMIT, CALL))
    assert (parsed.commands, parsed.task_complete) == ((LS,), True)
    assert parsed.warning == "- Calls after submit were ignored"


_TYPEABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(_TYPEABLE, st.booleans())
def test_a_command_passes_unchanged(command: str, wrapped: bool) -> None:
    text = hermes(call(command=command)) if wrapped else call(command=command)
    assert read(text).commands == (Command(command if command.endswith("\n") else f"{command}\n", 60.0),)


_PIECES = st.sampled_from(["<tool_call>", "</tool_call>", CALL, SUBMIT, "{", "}", "[", "]", '"', "\\", ",", ":", "\n",
                           "```bash\n", "\n```\n", "<think>", "</think>", "<function=bash>", "</function>",
                           "<parameter=command>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>",
                           "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
                           '{"name":', '"bash"', '"arguments":', "null",
                           '"tool_calls":', '"function":', "\ud800", "\0", "9" * 5000])  # fmt: skip


@given(st.lists(_PIECES, max_size=40).map("".join) | st.text())
def test_any_text_gives_a_verdict(text: str) -> None:
    parsed = parse_tool_call(text)
    assert parsed.error is None or parsed.commands == ()
    for shown in (parsed.error, parsed.warning, parsed.analysis):
        (shown or "").encode()
    assert all(0.0 <= command.duration_sec <= 60.0 for command in parsed.commands)


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(["bash", "submit"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "arguments", "function", "tool_calls", "command", "timeout", "input"]), inner
        )
    ),
)


@given(_JSON)
def test_any_json_gives_a_verdict(value: object) -> None:
    parsed = parse_tool_call(json.dumps(value))
    assert parsed.error is None or parsed.commands == ()


_MEGABYTE = 1_000_000
_GARBAGE: dict[str, Callable[[], str]] = {
    "open calls": lambda: "<tool_call>" * (_MEGABYTE // 11),
    "open functions": lambda: "<function=bash><parameter=command>" * (_MEGABYTE // 34),
    "functions without an end": lambda: (
        "<function=bash><parameter=command>" * (_MEGABYTE // 68) + "</parameter><parameter=a>" * (_MEGABYTE // 50)
    ),
    "open keys": lambda: "<tool_call>bash<arg_key>" * (_MEGABYTE // 24),
    "open values": lambda: "<tool_call>bash<arg_key>a</arg_key><arg_value>" * (_MEGABYTE // 46),
    "open lists": lambda: '[TOOL_CALLS][{"name": "' * (_MEGABYTE // 23),
    "names": lambda: "<tool_call>" + "a" * _MEGABYTE,
    "open fences": lambda: "```bash\n" * (_MEGABYTE // 8),
    "braces": lambda: "{" * _MEGABYTE,
    "brackets": lambda: "[" * _MEGABYTE,
    "open thinking": lambda: "<think>" * (_MEGABYTE // 7),
    "blanks": lambda: "<tool_call>" + " " * _MEGABYTE,
    "objects": lambda: "{}" * (_MEGABYTE // 2),
    "letters": lambda: "a" * _MEGABYTE,
    "too long to read": lambda: "a" * 17_000_000,
}


@pytest.mark.parametrize("name", _GARBAGE)
def test_a_megabyte_of_garbage_is_refused(name: str) -> None:
    found: list[ParsedAction] = []
    text = _GARBAGE[name]()
    thread = threading.Thread(target=lambda: found.append(read(text)), daemon=True)
    thread.start()
    thread.join(60.0)  # far beyond a linear parse, far below a quadratic one
    assert found
    assert found[0].error
    assert len(found[0].error) < 3000


@pytest.mark.parametrize(
    ("rest", "error", "warning"),
    [
        (CALL, None, None),
        (f"Sure: {CALL}", None, "- Extra text detected before the tool call"),
        ('Sure: {"name": 1}', 'Call 1 has no "name"', "- Extra text detected before the tool call"),
        (
            f"Sure: {call(command='a\0')}",
            "Command 1 'keystrokes' contains",
            "- Extra text detected before the tool call",
        ),
        (
            f"<tool_call>{CALL}<tool_call>{{",
            "Invalid JSON in a tool call",
            "- A <tool_call> was not closed by </tool_call> right after its JSON object",
        ),
    ],
)
def test_thinking_and_warnings_are_kept_whatever_came_of_it(rest: str, error: str | None, warning: str | None) -> None:
    for opening in ("<think>why", "\n <think> why "):
        parsed = read(f"{opening}</think>{rest}")
        assert (parsed.analysis, parsed.warning) == ("why", warning)
        assert (parsed.error or "").startswith(error or "")
        assert bool(parsed.error) is bool(error)


def test_thinking_ends_at_its_first_end_or_not_at_all() -> None:
    parsed = read(f"<think>a</think>{call(command='</think>')}")
    assert (parsed.commands, parsed.analysis) == ((Command("</think>\n", 60.0),), "a")
    parsed = read(f"<think>a {CALL}")
    assert (parsed.commands, parsed.analysis) == ((LS,), "")
    assert parsed.warning == "- Extra text detected before the tool call"


def test_wrapped_calls_of_several_wrappers_run_in_order() -> None:
    wrapped = json.dumps([{"tool_calls": [json.loads(CALL)]}, {"tool_calls": [json.loads(call(command="pwd"))]}])
    assert read(wrapped).commands == (LS, Command("pwd\n", 60.0))


def test_arguments_that_are_blank_are_none() -> None:
    assert read('{"name": "submit", "arguments": " "}').task_complete
    assert (read('{"name": "bash", "arguments": " "}').error or "").startswith("Call 1: bash needs")


def test_a_fence_begins_its_line_and_may_trail_blanks() -> None:
    assert read("```bash \nls\n``` \n").commands == (LS,)
    for text in (" ```bash\nls\n```", "```bash\nls\n ```"):
        assert (read(text).error or "").startswith("No tool call found")


def test_the_longest_message_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_MESSAGE_CHARS", len(CALL))
    assert read(CALL).commands == (LS,)
    assert read(f"{CALL} ").error == f"The message has {len(CALL) + 1} characters; at most {len(CALL)} are read"


# --- keystrokes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "typed", "complete"),
    [
        ("ls\n", ["ls\n"], False),
        ("ls", ["ls"], False),
        ("  i{x}\n\n", ["  i{x}\n\n"], False),
        ("C-c", ["C-c"], False),
        ("", [""], False),
        ("<task_complete/>", [], True),
        ("<task_complete/>\n", [], True),
        ("make\n<task_complete/>", ["make\n"], True),
        ("<task_complete/>\nmake\n", ["<task_complete/>\nmake\n"], False),
        ("echo <task_complete/>", ["echo <task_complete/>"], False),
        (" <task_complete/>\n", [" <task_complete/>\n"], False),
    ],
)
def test_keystrokes(text: str, typed: list[str], complete: bool) -> None:
    parsed = parse_action(text, format=ActionFormat.KEYSTROKES)
    assert [command.keystrokes for command in parsed.commands] == typed
    assert (parsed.task_complete, parsed.error, parsed.warning) == (complete, None, None)


@pytest.mark.parametrize("text", ["a\0", "\udc00"])
def test_keystrokes_that_cannot_be_typed(text: str) -> None:
    parsed = parse_action(text, format=ActionFormat.KEYSTROKES)
    assert (parsed.commands, bool(parsed.error)) == ((), True)


@given(_TYPEABLE)
def test_keystrokes_pass_unchanged(text: str) -> None:
    parsed = parse_action(text, format=ActionFormat.KEYSTROKES)
    assert [command.keystrokes for command in parsed.commands] == [text]


# --- one entry, and its text for the policy ---------------------------------------------------------------------------


@pytest.mark.parametrize("action_format", ActionFormat)
def test_commands_have_no_format(action_format: ActionFormat) -> None:
    assert parse_action([("ls\n", 60)], format=action_format).commands == (LS,)


@pytest.mark.parametrize("action_format", ActionFormat)
def test_the_prompts_own_example_is_read_without_complaint(action_format: ActionFormat) -> None:
    prompt = prompts.system_prompt(action_format)
    example = {
        ActionFormat.TERMINUS_JSON: r'^\{"analysis.*$',
        ActionFormat.TERMINUS_XML: r"^<response>$.*^</response>$",
        ActionFormat.BASH_TOOL: r"^<tool_call>$.*^</tool_call>$",
        ActionFormat.KEYSTROKES: "<task_complete/>",
    }[action_format]
    flags = re.MULTILINE if action_format is ActionFormat.TERMINUS_JSON else re.MULTILINE | re.DOTALL
    found = re.search(example, prompt, flags)
    assert found is not None
    parsed = parse_action(found[0], format=action_format)
    assert (parsed.error, parsed.warning) == (None, None)
    if action_format is ActionFormat.KEYSTROKES:
        assert parsed.task_complete
    else:
        assert [command.keystrokes.strip() for command in parsed.commands] == ["ls -la"]


def test_the_json_prompts_are_those_that_policies_were_trained_on() -> None:
    """Change PROMPT_FORMAT along with these."""
    texts = [prompts.system_prompt(), prompts.confirmation_request("s"), prompts.parse_error("e", "w")]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    assert (prompts.PROMPT_FORMAT, digest) == ("1", "177e8bf08af807c24b6e0b480eec1ade115af87156a4c19b2f147b14a8d02fc6")


@pytest.mark.parametrize("action_format", ActionFormat)
def test_no_format_mentions_another(action_format: ActionFormat) -> None:
    prompt = prompts.parse_error("e", None, action_format) + prompts.confirmation_request("", action_format)
    assert ("JSON" in prompt) is (action_format is ActionFormat.TERMINUS_JSON)


# --- further tools ----------------------------------------------------------------------------------------------------

ADD = ToolDefinition("box__add", parameters={"properties": {"a": {"type": "integer"}, "name": {"type": "string"}}})
ADDED = ToolCall("box__add", '{"a": 2, "name": "3"}')
CALLS_OF_ADD = [
    hermes(CALL, '{"name": "box__add", "arguments": {"a": 2, "name": "3"}}', CALL),
    "<function=bash><parameter=command>ls</parameter></function><function=box__add>\n<parameter=a>\n2\n</parameter>\n"
    "<parameter=name>\n3\n</parameter>\n</function><function=bash><parameter=command>ls</parameter></function>",
    "[TOOL_CALLS]"
    + json.dumps([json.loads(CALL), {"name": ADDED.name, "arguments": {"a": 2, "name": "3"}}, json.loads(CALL)]),
]


@pytest.mark.parametrize("text", CALLS_OF_ADD)
def test_a_further_tool_is_called_in_its_place(text: str) -> None:
    parsed = parse_action(text, format=ActionFormat.BASH_TOOL, tools=[ADD])
    assert (list(parsed.parts), parsed.error) == ([(LS,), ADDED, (LS,)], None)
    unknown = read(text)
    assert (unknown.calls, unknown.commands) == ((), ())
    assert "unknown tool 'box__add'; the tools are bash and submit" in (unknown.error or "")


def test_further_tools_alone() -> None:
    one = '{"name": "box__add", "arguments": {"a": 2, "name": "3"}}'
    parsed = parse_action(hermes(one, one, SUBMIT), format=ActionFormat.BASH_TOOL, tools=[ADD])
    assert (list(parsed.parts), parsed.task_complete) == ([ADDED, ADDED], True)
    assert list(read(CALL).parts) == [(LS,)]
    assert list(read(SUBMIT).parts) == [()]
    refused = parse_action(hermes(one.replace("2", "NaN")), format=ActionFormat.BASH_TOOL, tools=[ADD])
    assert "Invalid JSON" in (refused.error or "")
    mistaken = parse_action(hermes('{"name": "box__sub", "arguments": {}}'), format=ActionFormat.BASH_TOOL, tools=[ADD])
    assert "the tools are bash, box__add and submit" in (mistaken.error or "")


@pytest.mark.parametrize(
    ("action_format", "text", "error"),
    [
        (ActionFormat.TERMINUS_JSON, '{"commands": ' + "[" * 100_000, "Invalid JSON: nested too deeply"),
        (
            ActionFormat.TERMINUS_XML,
            "<response><commands><keystrokes>a < > b</keystrokes></commands></response>",
            "Invalid XML: there is nothing but blanks between a '<' and the next '>'; write it without the blanks",
        ),
    ],
)
def test_what_harbors_parser_can_not_read_is_explained(action_format: ActionFormat, text: str, error: str) -> None:
    assert parse_action(text, format=action_format).error == error


def test_a_configurations_own_system_message_is_the_prompts() -> None:
    config = TerminalEnvConfig(task_dir=Path("task"), system_prompt="Be brief.")
    assert prompts.opening(config, "Do it.\n", "$").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Task:\nDo it.\n\nTerminal:\n$"},
    ]


def test_the_next_steps_message_has_its_screen() -> None:
    assert prompts.next_step("Do that.\n", "/srv $ ") == (
        "[that step was graded; here is the next]\nTask:\nDo that.\n\nTerminal:\n/srv $ "
    )
