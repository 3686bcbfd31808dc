"""Conversations with tools, written by a model's own chat template."""

import functools
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harbor_gym.codecs import HFCodec
from harbor_gym.codecs.hf import ChatTokenizer
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, tool_schema
from harbor_gym.gateway.chat import Message, ParsedAnswer, parse_answer, tools_digest
from harbor_gym.types import ChatMessage

_MAX_TOOL_SETS = 32
"""Sets of tools that codecs are kept for; making one renders the template a few times."""


class TemplateConversationCodec:
    """Write conversations and tools with a tokenizer's chat template, and read tool calls in Hermes' and Qwen's form.

    An :class:`HFCodec` for each set of tools, which agents declare with every request.

    Args:
        tokenizer: A tokenizer with a chat template that declares tools.
        chat_template: As for :class:`HFCodec`.
        stop_token_ids: As for :class:`HFCodec`.
        template_kwargs: Further arguments of the template, such as ``enable_thinking=False``.

    Raises:
        UsageError: As :class:`HFCodec` does.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        chat_template: str | None = None,
        stop_token_ids: Sequence[int] | None = None,
        **template_kwargs: Any,
    ) -> None:
        self._make = functools.partial(HFCodec, tokenizer, chat_template, stop_token_ids, **template_kwargs)
        self._plain = self._make()
        self._by_tools: OrderedDict[bytes, HFCodec] = OrderedDict()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        # The template takes more kinds of messages than a plain chat has.
        return self._codec(tools).prompt(cast("list[ChatMessage]", _template_messages(messages)))

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``."""
        return self._codec(tools).next_messages(sampled, [_template_message(message) for message in messages])

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, reasoning and tool calls of an answer."""
        return parse_answer(self._plain.text(sampled), self._plain.reasoning(sampled), tools)

    def _codec(self, tools: Sequence[ToolDefinition]) -> HFCodec:
        if not tools:
            return self._plain
        key = tools_digest(tools)
        codec = self._by_tools.get(key)
        if codec is None:
            codec = self._by_tools[key] = self._make(tools=[tool_schema(tool) for tool in tools])
        while len(self._by_tools) > _MAX_TOOL_SETS:
            self._by_tools.popitem(last=False)
        return codec


def _template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a chat whose only system message is the first: templates refuse or drop others."""
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system = "\n\n".join(message.content for message in messages[:leading])
    chat = [{"role": "system", "content": system}] if leading else []
    return chat + [_template_message(message) for message in messages[leading:]]


def _template_message(message: Message) -> dict[str, Any]:
    role = "user" if message.role == "system" else message.role
    written: dict[str, Any] = {"role": role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    return written


def _template_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"input": call.arguments}
