"""Conversations with tools, written by a model's own chat template."""

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harbor_gym.codecs import HFCodec
from harbor_gym.codecs.hf import ChatTokenizer
from harbor_gym.errors import UsageError
from harbor_gym.formats.call_forms import CALL_FORMS, CallForm
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, tool_schema
from harbor_gym.gateway.chat import Message, ParsedAnswer, parse_answer, tools_digest
from harbor_gym.gateway.codec import TextConversationCodec
from harbor_gym.types import ChatMessage

_MAX_TOOL_SETS = 32
"""Sets of tools whose codecs are cached; making a codec renders the template a few times."""


class TemplateConversationCodec:
    """Write conversations and tools with a tokenizer's chat template, and read tool calls in the template's form.

    Each set of tools has its own :class:`HFCodec`, since agents declare their tools with every request. To find the
    form of a call (:data:`harbor_gym.formats.call_forms.CALL_FORMS`), the template is made to write one. A template
    that declares tools and writes no calls gets the form of Hermes and Qwen. For a template that does neither, tools
    and their calls are text, as :class:`harbor_gym.gateway.codec.TextConversationCodec` writes them.

    Args:
        tokenizer: A tokenizer with a chat template.
        chat_template: As for :class:`HFCodec`.
        stop_token_ids: As for :class:`HFCodec`.
        template_kwargs: Further arguments of the template, such as ``enable_thinking=False``.

    Raises:
        UsageError: As :class:`HFCodec`, or the template writes tool calls in a form that can't be read.
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
        probing = self._codec([_PROBE_TOOL])
        self._form = _find_form(probing)
        # Such a template would silently drop an agent's tools.
        is_silent = _PROBE_TOOL.name not in tokenizer.decode(probing.prompt([{"role": "user", "content": "task"}]))
        self._text = TextConversationCodec(self._plain) if self._form is None and is_silent else None

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        if tools and self._text is not None:
            return self._text.render(messages, tools)
        # The template takes more kinds of messages than a plain chat has.
        return self._codec(tools).prompt(cast("list[ChatMessage]", _template_messages(self._with_ids(messages))))

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``."""
        if tools and self._text is not None:
            return self._text.render_next(sampled, messages, tools)
        return self._codec(tools).next_messages(
            sampled, [_template_message(message) for message in self._with_ids(messages)]
        )

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, reasoning and tool calls of an answer."""
        form = self._form or CALL_FORMS[0]
        return parse_answer(self._plain.text(sampled), self._plain.reasoning(sampled), tools, form)

    def _with_ids(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, with call ids that the template accepts."""
        if self._form is None or not self._form.has_short_ids:
            return messages
        return [
            replace(
                message,
                tool_calls=tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls),
                tool_call_id=_short_id(message.tool_call_id),
            )
            for message in messages
        ]

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


_PROBE_TOOL = ToolDefinition(
    "probing",
    "Probe.",
    {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}, "required": ["text"]},
)
_PROBE_CALL = ToolCall("probing", json.dumps({"text": "a < b\nc", "number": 2}), "call00000")


def _find_form(codec: HFCodec) -> CallForm | None:
    """Return the form of the calls that a template writes; None if it writes none.

    Raises:
        UsageError: The template writes calls in a form that can't be read.
    """
    message = Message("assistant", "", (_PROBE_CALL,))
    try:
        written = codec.written(_template_message(message))
    except Exception as exc:  # any exception of a foreign template means that it can't write calls
        raise _unreadable(f"it can't write one: {type(exc).__name__}: {exc}") from exc
    if _PROBE_TOOL.name not in written:
        return None
    for form in CALL_FORMS:
        content, calls = form.read(written, [_PROBE_TOOL])
        read = [(call.name, json.loads(call.arguments)) for call in calls]
        if read == [(_PROBE_CALL.name, json.loads(_PROBE_CALL.arguments))] and not content.strip():
            return form
    raise _unreadable(f"it writes one as {written.strip()!r:.300}")


def _short_id(call_id: str) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if call_id else ""


def _unreadable(what: str) -> UsageError:
    return UsageError(
        f"the tool calls of this chat template can't be read: {what}. These forms can: "
        f"{', '.join(form.name for form in CALL_FORMS)}. Pass an HFCodec, with which tools are declared as text, "
        "or a ConversationCodec of your own"
    )


def _template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a chat with at most one system message, at the beginning: templates refuse or drop others."""
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
