"""Write a conversation with tools as tokens, for codecs that render tools themselves and for the others."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from harbor_gym.formats.template_text import TemplateText
from harbor_gym.formats.tool_text import ToolDefinition, declare_tools, write_calls, write_result
from harbor_gym.gateway.chat import Message, ParsedAnswer, parse_answer, split_thinking
from harbor_gym.types import ChatCodec, ChatMessage


@runtime_checkable
class ConversationCodec(Protocol):
    """One model family's writing of a conversation with tools as tokens.

    A codec that renders tools with the model's own chat template implements this beside :class:`ChatCodec`; the gateway
    prefers it. Every method is called in a worker thread and must be safe for concurrent calls.
    """

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        ...

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``: what is missing of its end, ``messages`` (no assistant messages),
        and the opening of the next answer.
        """
        ...

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return what ``sampled`` holds. Without tools no tool call is looked for."""
        ...


@runtime_checkable
class ReasoningCodec(Protocol):
    """A :class:`ChatCodec` that returns the reasoning which its ``text`` leaves out."""

    def reasoning(self, sampled: Sequence[int]) -> str:
        """Return the reasoning text of an answer; empty where it has none."""
        ...


class TextConversationCodec:
    """Render tools, tool calls and tool results as text, so that any :class:`ChatCodec` can carry them.

    Tools are declared in the system message and called as ``<tool_call>{"name", "arguments"}</tool_call>``; a call in
    another of :data:`harbor_gym.formats.call_forms.CALL_FORMS`, which its family was trained on, is read, too. Messages
    between two answers become one user message, with tool results in ``<tool_response>`` marks.

    Args:
        codec: Any chat codec. If it is a :class:`ReasoningCodec`, reasoning text is reported; otherwise only a
            ``<think>`` block that its text still contains.
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
    """Return a codec for conversations with tools: ``codec`` itself where it is one."""
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
