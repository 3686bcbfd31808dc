"""A conversation independent of any wire format, and the normal form in which two requests are compared.

Every wire (chat completions, responses, messages) is translated into these types and back. The normal form ignores what
clients change between two requests without changing the conversation: ids of tool calls, the layout of a call's JSON,
outer white space, reasoning text and cache marks.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harbor_gym.formats.call_forms import CallForm, looks_like_a_call, read_any
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.types import StopReason

Role = Literal["system", "user", "assistant", "tool"]
"""Author of a message. A wire's ``developer`` is a ``system`` here, its ``function`` a ``tool``."""

_THINK, _END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    """The author."""

    content: str
    """Its text."""

    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that an assistant message makes, in order."""

    tool_call_id: str = ""
    """For a tool message: the call that it answers."""

    reasoning: str = ""
    """Reasoning text of an assistant message, where the client sent it back. Not part of the normal form."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for an answer."""

    model: str
    """Model name that the client asked for."""

    messages: tuple[Message, ...]
    """The whole conversation."""

    tools: tuple[ToolDefinition, ...] = ()
    """Tools that the model may call."""

    stream: bool = False
    """Whether the client reads server-sent events."""

    max_calls: int | None = None
    """Most tool calls that the client accepts in the answer; with 0 their text is content. None is no limit."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The content of a sampled message."""

    content: str
    """Text outside reasoning and tool calls."""

    reasoning: str = ""
    """Reasoning text, where the codec exposes it."""

    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls, in order. A call that can't be parsed stays in ``content``."""

    is_unread_call: bool = False
    """Whether ``content`` looks like a call that can't be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a request."""

    parsed: ParsedAnswer
    """Its text and tool calls."""

    stop_reason: StopReason
    """Why the sampler stopped."""

    prompt: Sequence[int]
    """The prompt, token ids."""

    sampled: Sequence[int]
    """The sampled tokens."""

    logprobs: Sequence[float] | None
    """Log-probability of each sampled token, in nats, where the sampler returns them."""


def split_thinking(text: str) -> tuple[str, str]:
    """Return the ``<think>`` block that opens ``text``, and the rest; a block that is not closed is no block."""
    opened = text.lstrip()
    if not opened.startswith(_THINK):
        return "", text
    thinking, closed, rest = opened.removeprefix(_THINK).partition(_END_THINK)
    return (thinking.strip(), rest.lstrip("\n")) if closed else ("", text)


def parse_answer(
    text: str, reasoning: str, tools: Sequence[ToolDefinition], form: CallForm | None = None
) -> ParsedAnswer:
    """Return an answer with its tool calls, each with a fresh id; without tools no call is looked for.

    Args:
        text: The answer without its thinking.
        reasoning: Its thinking.
        tools: The declared tools.
        form: The form in which the model writes calls; None reads any form.
    """
    if not tools:
        return ParsedAnswer(text, reasoning)
    content, calls = read_any(text, tools) if form is None else form.read(text, tools)
    # An id that is fit for every wire.
    identified = tuple(replace(call, id=f"call_{secrets.token_hex(12)}") for call in calls)
    return ParsedAnswer(content, reasoning, identified, looks_like_a_call(content))


def canonical_json(text: str) -> str:
    """Return JSON text with sorted keys and no spaces; text that is not JSON comes back without outer white space."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text.strip()


def with_canonical_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with tool-call ids replaced by positions, so that regenerated ids compare equal.

    A result that refers to no earlier call keeps no id.
    """
    renamed: list[Message] = []
    names: dict[str, str] = {}
    for position, message in enumerate(messages):
        if not message.tool_calls and not message.tool_call_id:
            renamed.append(message)
            continue
        calls: list[ToolCall] = []
        for number, call in enumerate(message.tool_calls):
            canonical = f"call_{position}_{number}"
            if call.id:
                names[call.id] = canonical
            calls.append(replace(call, id=canonical))
        answered = names.get(message.tool_call_id, "")
        renamed.append(replace(message, tool_calls=tuple(calls), tool_call_id=answered))
    return tuple(renamed)


def extend_digest(digest: bytes, message: Message) -> bytes:
    """Return the digest of a conversation that goes on with ``message``."""
    normal = json.dumps([digest.hex(), *_normal_form(message)])
    return hashlib.sha256(normal.encode()).digest()


def tools_digest(tools: Sequence[ToolDefinition]) -> bytes:
    """Return a digest of a set of tools, independent of their order."""
    normal = sorted(
        json.dumps([tool.name, tool.description, tool.parameters, tool.is_freeform], sort_keys=True) for tool in tools
    )
    return hashlib.sha256(json.dumps(normal).encode()).digest()


def _normal_form(message: Message) -> Iterator[object]:
    yield message.role
    is_answer = message.role == "assistant"
    yield (split_thinking(message.content)[1] if is_answer else message.content).strip()
    # An answer's ids follow from its position; a result's id is the call that it answers.
    yield [(call.name, canonical_json(call.arguments)) for call in message.tool_calls]
    yield message.tool_call_id
