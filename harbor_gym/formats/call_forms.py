"""The forms in which model families write tool calls, read from an answer's text.

Source: the families' chat templates, and vLLM's tool parsers for the variants that models write. Each reader returns
the text outside calls, and the calls; a call that can't be read stays in the text. No reader raises, and each takes
time linear in the text for each call; after a number of unreadable calls it stops.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, read_calls

type Read = tuple[str, tuple[ToolCall, ...]]
"""Text outside calls, and calls without an id."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way to write tool calls."""

    name: str
    """Its name in error messages."""

    read: Callable[[str, Sequence[ToolDefinition]], Read]
    """Reads an answer without its thinking."""

    opening: str
    """Pattern of a call's beginning."""

    has_short_ids: bool = False
    """Whether the family's templates only accept call ids of nine letters and digits."""


def looks_like_a_call(text: str) -> bool:
    """Return whether text that holds no readable call opens one, in any family's form."""
    return bool(_OPENING.search(text))


# An object with a name and arguments is a call only where it is the whole message: prose may show one.
_OPENING = re.compile(
    r"<\|?tool_calls?(?:_begin|_start|\u2581begin)?\|?>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<\uff5ctool\u2581calls?\u2581begin\uff5c>"
    r"|\A\s*\[?\s*\{\s*\"name\"\s*:[^{}]*\"(?:parameters|arguments)\"\s*:"
)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>(?:\s*</tool_call>)?")
_GLM_CALL = re.compile(r"<tool_call>\s*([^\s<{]+)")
_GLM_KEY = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL)
_GLM_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))")
_GLM_END = re.compile(r"\s*(?:</tool_call>|\Z)")
_MISTRAL_CALL = re.compile(r"\[TOOL_CALLS\]\s*(?:([^\s\[{]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*)?(?=[\[{])")
_MAX_UNREAD = 20
"""Unreadable calls after which the search stops: each may have cost a scan of the whole text."""

_LLAMA_GAP = re.compile(r"[\s;]*(?:<\|python_tag\|>)?\s*")


def _read_functions(text: str, tools: Sequence[ToolDefinition]) -> Read:
    def read(found: re.Match[str]) -> tuple[list[ToolCall], int] | None:
        name, position, arguments = found[1].strip(), found.end(), dict[str, Any]()
        while parameter := _PARAMETER.match(text, position):
            end = _PARAMETER_END.search(text, parameter.end())
            if end is None:
                return None
            value = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
            arguments[parameter[1].strip()] = _typed(value, name, parameter[1].strip(), tools)
            position = end.end()
        closing = _FUNCTION_END.match(text, position)
        return None if closing is None else ([_call(name, arguments, tools)], closing.end())

    return _read_blocks(text, _FUNCTION, read)


def _read_glm(text: str, tools: Sequence[ToolDefinition]) -> Read:
    def read(found: re.Match[str]) -> tuple[list[ToolCall], int] | None:
        name, position, arguments = found[1], found.end(), dict[str, Any]()
        while key := _GLM_KEY.match(text, position):
            end = _GLM_VALUE_END.search(text, key.end())
            if end is None:
                return None
            arguments[key[1].strip()] = _typed(text[key.end() : end.start()], name, key[1].strip(), tools)
            position = end.end()
        closing = _GLM_END.match(text, position)
        return None if closing is None else ([_call(name, arguments, tools)], closing.end())

    return _read_blocks(text, _GLM_CALL, read)


def _read_mistral(text: str, tools: Sequence[ToolDefinition]) -> Read:
    def read(found: re.Match[str]) -> tuple[list[ToolCall], int] | None:
        decoded = _decode(text, found.end())
        if decoded is None:
            return None
        value, end = decoded
        items = [{"name": found[1], "arguments": value}] if found[1] else value
        calls = [_object(item, tools) for item in cast("list[Any]", items if isinstance(items, list) else [items])]
        return (cast("list[ToolCall]", calls), end) if calls and None not in calls else None

    return _read_blocks(text, _MISTRAL_CALL, read)


def _read_llama(text: str, tools: Sequence[ToolDefinition]) -> Read:
    calls: list[ToolCall] = []
    position = _gap(text, 0)
    while position < len(text):
        decoded = _decode(text, position)
        call = None if decoded is None else _object(decoded[0], tools)
        if decoded is None or call is None or call.name not in {tool.name for tool in tools}:
            return text, ()
        calls.append(call)
        position = _gap(text, decoded[1])
    return ("", tuple(calls)) if calls else (text, ())


def _gap(text: str, position: int) -> int:
    found = _LLAMA_GAP.match(text, position)
    return found.end() if found else position


CALL_FORMS = (
    CallForm("JSON in <tool_call> (Hermes, Qwen)", read_calls, r"<tool_call>"),
    CallForm(
        "<function=…> with <parameter=…> (Qwen3-Coder, Nemotron)", _read_functions, r"(?:<tool_call>\s*)?<function="
    ),
    CallForm("<arg_key> and <arg_value> (GLM)", _read_glm, r"<tool_call>\s*[^\s<{\[]+\s*(?:<arg_key>|</tool_call>)"),
    CallForm("[TOOL_CALLS] (Mistral)", _read_mistral, r"\[TOOL_CALLS\]", has_short_ids=True),
    CallForm("JSON as the whole message (Llama 3)", _read_llama, r"\A\s*<\|python_tag\|>"),
)
"""Every form that can be read."""

HERMES, _LLAMA = CALL_FORMS[0], CALL_FORMS[-1]

# Hermes' opening is the beginning of others.
_BY_GROUP = {f"form{number}": form for number, form in enumerate([*CALL_FORMS[1:], HERMES])}
_CALL = re.compile("|".join(f"(?P<{group}>{form.opening})" for group, form in _BY_GROUP.items()))


def find_opening(text: str, position: int = 0) -> tuple[CallForm, int] | None:
    """Return the form and the index of the first call that opens from ``position`` on."""
    found = _CALL.search(text, position)
    return None if found is None else (_BY_GROUP[found.lastgroup or ""], found.start())


def read_any(text: str, tools: Sequence[ToolDefinition]) -> Read:
    """Read an answer in the form of its first call; if that finds no call, in Hermes', then in Llama's."""
    first = find_opening(text)
    for form in (*((first[0],) if first else ()), HERMES, _LLAMA):
        if (read := form.read(text, tools))[1]:
            return read
    return text, ()


def _read_blocks(
    text: str, opening: re.Pattern[str], read: Callable[[re.Match[str]], tuple[list[ToolCall], int] | None]
) -> Read:
    rest: list[str] = []
    calls: list[ToolCall] = []
    position = unread = 0
    while unread < _MAX_UNREAD and (found := opening.search(text, position)):
        block = read(found)
        unread += block is None
        end = found.end() if block is None else block[1]
        rest.append(text[position : end if block is None else found.start()])
        calls += [] if block is None else block[0]
        position = end
    rest.append(text[position:])
    return ("".join(rest).strip() if calls else text), tuple(calls)


def _typed(value: str, name: str, key: str, tools: Sequence[ToolDefinition]) -> Any:
    """Return a value in the type of its schema: these forms write a string as it is, and other values as JSON."""
    properties = next((tool.parameters.get("properties") for tool in tools if tool.name == name), None)
    schema: Any = properties.get(key) if isinstance(properties, Mapping) else None
    types: Any = schema.get("type") if isinstance(schema, Mapping) else "string"
    if types == "string" or (isinstance(types, list) and "string" in types):
        return value
    try:
        return json.loads(value.strip())
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(value.strip(), value)


def _call(name: str, arguments: Mapping[str, Any], tools: Sequence[ToolDefinition]) -> ToolCall:
    is_freeform = any(tool.is_freeform for tool in tools if tool.name == name)
    given = arguments.get("input")
    return ToolCall(name, given if is_freeform and isinstance(given, str) else json.dumps(arguments))


def _object(value: Any, tools: Sequence[ToolDefinition]) -> ToolCall | None:
    match value:
        case {"name": str() as name, "arguments": dict() as arguments}:
            pass
        case {"name": str() as name, "parameters": dict() as arguments}:
            pass
        case _:
            return None
    return _call(name, cast("dict[str, Any]", arguments), tools)


def _decode(text: str, position: int) -> tuple[Any, int] | None:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
