"""The ``bash-tool`` format: calls of a tool ``bash``, in the forms that chat models write.

Read, in this order of preference:

1. every call in the form of the message's first call, among those that chat templates write
   (:data:`harbor_gym.formats.call_forms.CALL_FORMS`): ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` (Hermes,
   Qwen), ``<function=…>`` (Qwen3-Coder), ``<arg_key>`` (GLM), ``[TOOL_CALLS]`` (Mistral), ``<|python_tag|>`` (Llama 3);
2. one JSON object or a list of them: ``{"name", "arguments"}``, OpenAI's ``{"type": "function", "function": {…}}`` and
   ``{"tool_calls": […]}`` with arguments as an object or as JSON in a string, Anthropic's ``{"type": "tool_use",
   "name", "input"}``, Llama's ``{"name", "parameters"}``;
3. a single fenced block of ``bash`` or ``sh``, with a warning.

``bash`` takes ``command`` and an optional ``timeout`` in seconds. The command is typed unchanged, also if it has
several lines, and Enter after it; a key's name (``C-c``) presses that key; an empty command only waits.
``submit``, ``finish`` and ``task_complete`` declare the task complete. Calls of further tools that the caller names are
returned in their order. A call that can't be read rejects the message.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from harbor_gym.formats.call_forms import HERMES, CallForm, find_opening, looks_like_a_call
from harbor_gym.formats.parsed import MAX_DURATION_SEC, ParsedAction, as_list, check_commands, failure, success
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, skip_blanks

COMPLETING_TOOLS = ("submit", "finish", "task_complete")
"""Tools that declare the task complete."""

TERMINAL_TOOLS = (
    ToolDefinition(
        "bash",
        "Type a command into the one shell that stays open, and Enter after it.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command, or one key by name, such as C-c."},
                "timeout": {"type": "number", "description": "Longest wait in seconds, at most 60."},
            },
            "required": ["command"],
        },
    ),
    ToolDefinition("submit", "Declare the work done.", {"type": "object", "properties": {}}),
)
"""The tools of the format as chat templates declare them, for endpoints that parse tool calls themselves. Part of the
prompt: a policy trained with them should be run with the same."""

_TAG, _END_TAG = "<tool_call>", "</tool_call>"
_OPENING = re.compile(r"[{\[]")
_FENCES = ("```bash", "```sh", "```shell")
_ARGUMENTS = ("arguments", "parameters", "input")
_EXAMPLE = '{"name": "bash", "arguments": {"command": "ls -la"}}'


class _CallError(ValueError):
    """A call can't be read; the message is for the model."""


def parse_tool_call(text: str, tools: Sequence[ToolDefinition] = ()) -> ParsedAction:
    """Read one message that calls tools.

    Args:
        text: The message.
        tools: Further tools beside the terminal's.
    """
    analysis, body = _split_thinking(text)
    warnings: list[str] = []
    try:
        found = list(_find_calls(body, warnings, tools))
        pairs, calls, complete = _read_calls(found, warnings, tools)
    except _CallError as error:
        return failure(str(error), as_list(warnings), analysis)
    except (ValueError, RecursionError) as error:
        return failure(f"Invalid JSON in a tool call: {_explain(error)}", as_list(warnings), analysis)
    commands, problem = check_commands(pairs)
    if problem:
        return failure(problem, as_list(warnings), analysis)
    return success(commands, calls=calls, task_complete=complete, warning=as_list(warnings), analysis=analysis)


def _split_thinking(text: str) -> tuple[str, str]:
    """Return the thinking that opens the message, and the rest."""
    stripped = text.lstrip()
    if not stripped.startswith("<think>"):
        return "", text
    thinking, closed, rest = stripped.removeprefix("<think>").partition("</think>")
    return (thinking.strip(), rest) if closed else ("", text)


def _find_calls(text: str, warnings: list[str], tools: Sequence[ToolDefinition]) -> Iterator[object]:
    decoder = json.JSONDecoder()
    form, position = _find_form(text, decoder)
    if form is not None and form is not HERMES:
        yield from _calls_in(form, text, tools)
        return
    if form is HERMES:
        while position >= 0:
            start = skip_blanks(text, position + len(_TAG))
            call, end = decoder.raw_decode(text, start)
            yield call
            if not text.startswith(_END_TAG, skip_blanks(text, end)):
                warnings.append(f"A {_TAG} was not closed by {_END_TAG} right after its JSON object")
            position = text.find(_TAG, end)
        return
    if blocks := _fenced_blocks(text):
        # A fence may hold braces, so it is tried before a bare object; JSON is fenced as json.
        if len(blocks) > 1:
            raise _CallError(f"Found {len(blocks)} fenced blocks; call one tool at a time: {_EXAMPLE}")
        warnings.append(f"Read from a fenced block; write a tool call instead: {_EXAMPLE}")
        yield {"name": "bash", "arguments": {"command": blocks[0]}}
        return
    found = _OPENING.search(text)
    if found is None:
        raise _CallError(f"No tool call found. Write one like {_EXAMPLE}")
    value, end = decoder.raw_decode(text, found.start())
    if text[: found.start()].strip() not in ("", "```json"):
        warnings.append("Extra text detected before the tool call")
    if text[end:].strip() not in ("", "```"):
        warnings.append("Extra text detected after the tool call")
    yield from cast("list[object]", value) if isinstance(value, list) else [value]


def _find_form(text: str, decoder: json.JSONDecoder) -> tuple[CallForm | None, int]:
    """Return the form and index of the first call outside JSON values: a bare call's command may quote one."""
    found, end = find_opening(text), 0
    while found is not None and (opening := _OPENING.search(text, end, found[1])):
        try:
            _, end = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            break  # braces of prose
        if end > found[1]:
            found = find_opening(text, end)
    return (None, -1) if found is None else found


def _calls_in(form: CallForm, text: str, tools: Sequence[ToolDefinition]) -> Iterator[object]:
    """Yield the calls of a message in another form than Hermes'."""
    rest, calls = form.read(text, (*TERMINAL_TOOLS, *tools))
    if not calls or looks_like_a_call(rest):
        raise _CallError(f"A tool call could not be read as {form.name}. Write one like {_EXAMPLE}")
    for call in calls:
        yield {"name": call.name, "arguments": call.arguments}


def _fenced_blocks(text: str) -> list[str]:
    """Return the contents of the closed shell blocks."""
    blocks: list[str] = []
    block: list[str] | None = None
    for line in text.split("\n"):
        if block is None:
            block = [] if line.rstrip() in _FENCES else None
        elif line.rstrip() == "```":
            blocks.append("\n".join(block))
            block = None
        else:
            block.append(line)
    return blocks


def _read_calls(
    calls: list[object], warnings: list[str], tools: Sequence[ToolDefinition]
) -> tuple[list[tuple[str, float]], tuple[tuple[int, ToolCall], ...], bool]:
    """Return keystrokes and durations, calls of further tools, and whether a call declares the task complete."""
    pairs: list[tuple[str, float]] = []
    others: list[tuple[int, ToolCall]] = []
    known = {tool.name for tool in tools}
    for number, call in enumerate(_unwrap(calls), start=1):
        name, arguments = _read_call(call, number)
        if name in COMPLETING_TOOLS:
            if number < len(_unwrap(calls)):
                warnings.append(f"Calls after {name} were ignored")
            return pairs, tuple(others), True
        if name in known:
            others.append((len(pairs), ToolCall(name, json.dumps(arguments, allow_nan=False))))
            continue
        if name != "bash":
            names = " and ".join([", ".join(["bash", *sorted(known)]), "submit"])
            raise _CallError(f"Call {number}: unknown tool {name!r:.100}; the tools are {names}")
        pairs.append(_read_bash(arguments, number, warnings))
    if not pairs and not others:
        raise _CallError(f"No tool call found. Write one like {_EXAMPLE}")
    return pairs, tuple(others), False


def _unwrap(calls: list[object]) -> list[object]:
    """Return the calls themselves where a message wraps them in ``tool_calls``."""
    unwrapped: list[object] = []
    for call in calls:
        match call:
            case {"tool_calls": list(inner)}:
                unwrapped += cast("list[object]", inner)
            case _:
                unwrapped.append(call)
    return unwrapped


def _read_call(call: object, number: int) -> tuple[str, Mapping[str, Any]]:
    match call:
        case {"function": {"name": str()} as function}:
            call = cast("dict[str, object]", function)
        case {"name": str()}:
            call = cast("dict[str, object]", call)
        case _:
            raise _CallError(f'Call {number} has no "name". Write one like {_EXAMPLE}')
    arguments = next((call[key] for key in _ARGUMENTS if call.get(key) is not None), {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise _CallError(f'Call {number}: "arguments" must be an object')
    return cast("str", call["name"]), cast("dict[str, Any]", arguments)


def _read_bash(arguments: Mapping[str, Any], number: int, warnings: list[str]) -> tuple[str, float]:
    command = arguments.get("command")
    if not isinstance(command, str):
        raise _CallError(f'Call {number}: bash needs "command", a string')
    timeout = arguments.get("timeout")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | None):
        warnings.append(f"Call {number}: timeout is not a number, using default {MAX_DURATION_SEC:g}")
        timeout = None
    if unknown := sorted(set(arguments) - {"command", "timeout"}):
        warnings.append(f"Call {number}: unknown arguments: {', '.join(unknown)}")
    keystrokes = command if command.endswith("\n") or not command else f"{command}\n"
    return keystrokes, MAX_DURATION_SEC if timeout is None else timeout


def _explain(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
