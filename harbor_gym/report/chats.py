"""A run's episodes as chats."""

from collections.abc import Mapping
from typing import Any

from harbor_gym._runtime.files import StrPath
from harbor_gym.formats.call_forms import read_any
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, reply_messages
from harbor_gym.report.summaries import read_transcripts

_LABELS = ("name", "task", "split", "batch", "group", "episode", "reward", "end_reason", "error")


def messages(run: StrPath) -> list[dict[str, Any]]:
    """Return a run's episodes as chats, one per transcript, ordered by the transcripts' names. pandas is not needed.

    The keys are ``name``, ``task``, ``split``, ``batch``, ``group``, ``episode``, ``reward`` (None without a verdict),
    ``end_reason`` and ``error`` as in :func:`episodes`, and

    - ``messages``: the chat in the form of chat completions, from the system prompt to the policy's last answer;
    - ``tools``: the schemas of the tools that one of Harbor's agents declared, in the same form. With them an answer
      has ``tool_calls``, and what followed is the last call's result. Our own loop declares its tools in the system
      prompt and calls them in the text of an answer: ``tools`` is empty.

    Args:
        run: The folder of a training run or an evaluation, which has the folder ``transcripts``.

    Raises:
        UsageError: The run has no complete transcript.
    """
    return [
        {
            **{name: document.get(name) for name in _LABELS},
            "messages": chat_of(document),
            "tools": document.get("tools") or [],
        }
        for document in read_transcripts(run)
    ]


def chat_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the chat of one transcript's document, as :func:`messages` has it."""
    tools = [_definition(tool["function"]) for tool in document.get("tools") or ()]
    chat: list[dict[str, Any]] = []
    if document.get("system_prompt"):
        chat.append({"role": "system", "content": document["system_prompt"]})
    calls: list[dict[str, Any]] = []
    for number, turn in enumerate(document["turns"], start=1):
        chat += reply_messages(calls, turn["observation"])
        text, found = read_any(turn["action"], tools) if tools else (turn["action"], ())
        calls = [_call(call, f"call_{number}_{place}") for place, call in enumerate(found, start=1)]
        chat.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
    return chat


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _definition(function: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(function["name"], function.get("description", ""), function.get("parameters", {}))
