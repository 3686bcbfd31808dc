"""Tools as text: their declaration, calls and results where no chat template renders them.

The form of a call is the one that Hermes and Qwen models were trained on: ``<tool_call>{"name", "arguments"}
</tool_call>``. The ``bash-tool`` format reads it (:mod:`harbor_gym.formats.tool_call`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harbor_gym.formats.template_text import TemplateText

_TAG, _END_TAG = "<tool_call>", "</tool_call>"

_SURROGATE = re.compile("[\ud800-\udfff]")

_DECLARATION = """\
# Tools

You can call these tools, one JSON schema a line:
<tools>
"""
_CALLING = """
</tools>

To call a tool, write its name and arguments as one JSON object between tags; several calls are several such blocks:
<tool_call>
{"name": "tool-name", "arguments": {"argument": "value"}}
</tool_call>"""

_FREEFORM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the model wrote it."""

    name: str
    """The tool's name."""

    arguments: str
    """The arguments as JSON text; arbitrary text for a tool that takes no JSON."""

    id: str = ""
    """Identifier that a tool result refers to; empty if the caller assigns none."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool that the model may call."""

    name: str
    """Its name."""

    description: str = ""
    """Its description for the model."""

    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON schema of its arguments."""

    is_freeform: bool = False
    """Whether it takes one text instead of JSON arguments; the model passes that text as the argument ``input``."""


def declare_tools(tools: Sequence[ToolDefinition]) -> str:
    """Return the text that declares ``tools`` to the model, for the system message."""
    schemas = "\n".join(json.dumps(tool_schema(tool), ensure_ascii=False) for tool in tools)
    return TemplateText.join("", [TemplateText(_DECLARATION), encodable(schemas), TemplateText(_CALLING)])


def tool_schema(tool: ToolDefinition) -> dict[str, Any]:
    """Return a tool in the form that chat templates take (OpenAI's)."""
    parameters = _FREEFORM_SCHEMA if tool.is_freeform else tool.parameters
    function = {"name": tool.name, "description": tool.description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def write_calls(content: str, calls: Sequence[ToolCall]) -> str:
    """Return an answer with its tool calls as the model would have written it.

    Args:
        content: Text before the calls; may be empty.
        calls: The calls, in order.
    """
    written = [f"{_TAG}\n{_call_json(call)}\n{_END_TAG}" for call in calls]
    return "\n".join([content, *written] if content else written)


def write_result(content: str) -> str:
    """Return a tool's result as a part of a user message."""
    return TemplateText.join("\n", [TemplateText("<tool_response>"), content, TemplateText("</tool_response>")])


def reply_messages(calls: Sequence[Mapping[str, Any]], observation: str) -> list[dict[str, Any]]:
    """Return an observation as messages of a chat: the user's or, after tool calls, a result for each of them.

    Args:
        calls: The answer's ``tool_calls`` as chat completions have them.
        observation: What the policy is shown. It is the last call's result, and the other calls' results refer to it.
    """
    if not calls:
        return [{"role": "user", "content": observation}]
    contents = ["[see the last call's result]"] * (len(calls) - 1) + [observation]
    return [
        {"role": "tool", "tool_call_id": call.get("id", ""), "content": content}
        for call, content in zip(calls, contents, strict=True)
    ]


def read_calls(text: str, tools: Sequence[ToolDefinition] = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text outside tool calls, and the calls, which have no id yet.

    A call that is not one JSON object with a name and arguments stays in the text. White space around calls is dropped;
    a text without calls is returned unchanged. Never raises; takes time linear in the text's length for each opening
    tag.

    Args:
        text: An answer without its thinking.
        tools: The declared tools. Only freeform ones matter: their text is taken out of the JSON.
    """
    freeform = {tool.name for tool in tools if tool.is_freeform}
    rest: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while (start := text.find(_TAG, position)) >= 0:
        found = _read_call(text, start + len(_TAG), freeform)
        if found is None:
            rest.append(text[position : start + len(_TAG)])
            position = start + len(_TAG)
            continue
        call, end = found
        calls.append(call)
        rest.append(text[position:start])
        position = end
    rest.append(text[position:])
    return ("".join(rest).strip() if calls else text), tuple(calls)


def encodable(text: str) -> str:
    """Return ``text`` with U+FFFD for each lone surrogate, which JSON can hold and no tokenizer accepts."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _read_call(text: str, position: int, freeform: set[str]) -> tuple[ToolCall, int] | None:
    """Return the call whose JSON starts at ``position``, and the index after it."""
    start = skip_blanks(text, position)
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    call = _as_call(value, freeform)
    if call is None:
        return None
    closing = skip_blanks(text, end)
    # An answer cut at its token limit, or without the closing tag, may still have the whole call.
    return call, closing + len(_END_TAG) if text.startswith(_END_TAG, closing) else end


def _as_call(value: object, freeform: set[str]) -> ToolCall | None:
    match value:
        case {"name": str() as name, "arguments": dict() as arguments}:
            pass
        case {"name": str() as name, "arguments": str() as encoded}:
            arguments = _decode(encoded)
        case _:
            return None
    if arguments is None:
        return None
    if name in freeform and isinstance(arguments.get("input"), str):
        return ToolCall(name, cast("str", arguments["input"]))
    return ToolCall(name, json.dumps(arguments))


def _decode(encoded: str) -> dict[str, Any] | None:
    try:
        value = json.loads(encoded) if encoded.strip() else {}
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _call_json(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        arguments = {"input": call.arguments}
    return encodable(json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False))


def skip_blanks(text: str, position: int) -> int:
    """Return the index of the first character from ``position`` on that is no white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position
