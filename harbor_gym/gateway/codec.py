"""Write conversations with tools as tokens, with codecs that render tools themselves and with those that don't."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from harbor_gym.formats.template_text import TemplateText
from harbor_gym.formats.tool_text import ToolDefinition, declare_tools, write_calls, write_result
from harbor_gym.gateway.chat import Message, ParsedAnswer, parse_answer, split_thinking
from harbor_gym.types import ChatCodec, ChatMessage


@runtime_checkable
class ConversationCodec(Protocol):
    """Write and read conversations with tools as tokens, for one model family.

    A codec that renders tools with the model's own chat template implements this in addition to :class:`ChatCodec`; the
    gateway prefers it. Every method is called in a worker thread and must be safe for concurrent calls.
    """

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        ...

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``, up to the opening of the next answer.

        They are the missing part of the answer's end, ``messages`` (no assistant messages), and that opening.
        """
        ...

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, reasoning and tool calls of an answer. Without tools no tool call is looked for."""
        ...


@runtime_checkable
class ReasoningCodec(Protocol):
    """A :class:`ChatCodec` that returns the reasoning that its ``text`` leaves out."""

    def reasoning(self, sampled: Sequence[int]) -> str:
        """Return the reasoning text of an answer; empty if it has none."""
        ...


class TextConversationCodec:
    """Render tools, tool calls and tool results as text, so that any :class:`ChatCodec` can carry them.

    Tools are declared in the system message and called as ``<tool_call>{"name", "arguments"}</tool_call>``. Calls in
    the other forms of :data:`harbor_gym.formats.call_forms.CALL_FORMS`, on which model families are trained, are read
    as well. Messages between two answers become one user message, with tool results in ``<tool_response>`` marks.

    Args:
        codec: Any chat codec. Reasoning comes from a :class:`ReasoningCodec`, else from a ``<think>`` block that the
            text still contains.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        return self._codec.prompt(_chat_messages(messages, tools))

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``, with ``messages`` as one user message."""
        return self._codec.next_turn(sampled, _user_text(messages))

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, reasoning and tool calls of an answer."""
        thinking, text = split_thinking(self._codec.text(sampled))
        if isinstance(self._codec, ReasoningCodec):
            thinking = self._codec.reasoning(sampled) or thinking
        return parse_answer(text, thinking, tools)


def as_conversation_codec(codec: ChatCodec | ConversationCodec) -> ConversationCodec:
    """Return ``codec`` itself if it writes conversations with tools, else a :class:`TextConversationCodec` of it."""
    return codec if isinstance(codec, ConversationCodec) else TextConversationCodec(codec)


def _chat_messages(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[ChatMessage]:
    """Return a chat of one system message, if there is any system text, and alternating users and answers."""
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system = [message.content for message in messages[:leading]]
    if tools:
        system.append(declare_tools(tools))
    chat = [ChatMessage(role="system", content=TemplateText.join("\n\n", system))] if system else []
    between: list[Message] = []
    for message in messages[leading:]:
        if message.role != "assistant":
            between.append(message)
            continue
        if between:
            chat.append(ChatMessage(role="user", content=_user_text(between)))
            between = []
        chat.append(ChatMessage(role="assistant", content=write_calls(message.content, message.tool_calls)))
    if between:
        chat.append(ChatMessage(role="user", content=_user_text(between)))
    return chat


def _user_text(messages: Sequence[Message]) -> str:
    return TemplateText.join(
        "\n", (write_result(message.content) if message.role == "tool" else message.content for message in messages)
    )
