"""Tools as text: a written call is read back, and an unreadable one stays in its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.formats import ActionFormat, parse_action
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, declare_tools, read_calls, write_calls, write_result

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc<>/"), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text("abc"), json_values, max_size=3).map(json.dumps)
calls = st.builds(ToolCall, st.text("abc_", min_size=1), arguments)


@given(content=st.text("ab \n"), written=st.lists(calls, max_size=3))
def test_calls_are_read_back(content: str, written: list[ToolCall]) -> None:
    text, found = read_calls(write_calls(content, written))
    assert [(call.name, json.loads(call.arguments)) for call in found] == [
        (call.name, json.loads(call.arguments)) for call in written
    ]
    assert text == (content.strip() if written else content)


@given(st.text('<tool_call>{}[]"name:argents ,/\n', max_size=200))
def test_anything_can_be_read(text: str) -> None:
    content, found = read_calls(text)
    assert found or content == text


@pytest.mark.parametrize(
    "text",
    ["<tool_call>", "<tool_call>{", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "<tool_call>" * 50],
)
def test_what_is_no_call_stays_in_the_text(text: str) -> None:
    assert read_calls(f"before {text}") == (f"before {text}", ())


def test_a_call_that_was_not_closed_is_a_call_if_its_json_is_whole() -> None:
    assert read_calls('x <tool_call>{"name": "a", "arguments": "{}"}') == ("x", (ToolCall("a", "{}"),))


def test_a_freeform_tool_takes_its_text_as_it_is() -> None:
    tool = ToolDefinition("patch", is_freeform=True)
    written = write_calls("", [ToolCall("patch", "*** not json")])
    assert read_calls(written, [tool]) == ("", (ToolCall("patch", "*** not json"),))
    assert '"input"' in declare_tools([tool])


def test_the_bash_tool_format_reads_what_is_written() -> None:
    text = write_calls("first", [ToolCall("bash", '{"command": "echo \\u00e9"}')])
    assert parse_action(text, format=ActionFormat.BASH_TOOL).commands[0].keystrokes == "echo é\n"


def test_texts_can_be_tokenised_whatever_is_in_them() -> None:
    assert "\ufffd" in declare_tools([ToolDefinition("a", "\ud800")]).encode().decode()
    assert '"x": "\ufffd"' in write_calls("", [ToolCall("a", '{"x": "\\ud800"}')]).encode().decode()
    assert write_result("y") == "<tool_response>\ny\n</tool_response>"
