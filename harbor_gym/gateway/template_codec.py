"""Conversations with tools, written by a model's own chat template."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harbor_gym.errors import UsageError
from harbor_gym.gateway import tool_text
from harbor_gym.gateway.chat import Message, ParsedAnswer, ToolCall, ToolDefinition, split_thinking

# Two answers that share no token: what their renderings have in common behind them does not come from the answer.
_PROBES = ("0", "z")


class ChatTokenizer(Protocol):
    """What is used of a tokenizer; Hugging Face's have it."""

    eos_token_id: int | None

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> Any:
        """Return the conversation's token ids."""
        ...

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> Any:
        """Return the text of token ids."""
        ...


class TemplateConversationCodec:
    """Write conversations and tools with a tokenizer's chat template, and read tool calls in Hermes' and Qwen's form.

    What follows an answer is found by rendering two conversations that differ in the answer alone, and taking what
    their renderings have in common behind it: what was sampled is never rendered again.

    Args:
        tokenizer: A tokenizer with a chat template that declares tools.
        stop_token_ids: Tokens that end an answer; None is the tokenizer's end-of-sequence token.
        template_kwargs: Further variables of the template, such as ``enable_thinking`` or ``chat_template``.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, *, stop_token_ids: Sequence[int] | None = None, **template_kwargs: Any
    ) -> None:
        self._tokenizer, self._template_kwargs = tokenizer, template_kwargs
        self._lock = threading.Lock()  # a tokenizer's switches are shared among threads
        given = [tokenizer.eos_token_id] if stop_token_ids is None else stop_token_ids
        self._stops = frozenset(token for token in given if token is not None)
        opening = self._decode(self.render([Message("user", "task")], ()), skip_special_tokens=False)
        self._opens_thinking = opening.rstrip().endswith("<think>")

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the tokens of a whole conversation, up to the opening of the next answer."""
        return self._apply(_template_messages(messages), tools)

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the tokens that follow ``sampled``.

        Raises:
            UsageError: The template writes an earlier answer in a way that can't be continued token by token.
        """
        task, following = {"role": "user", "content": "task"}, [_template_message(message) for message in messages]
        first, second = (
            self._apply([task, {"role": "assistant", "content": probe}, *following], tools) for probe in _PROBES
        )
        common = 0
        while common < min(len(first), len(second)) and first[-1 - common] == second[-1 - common]:
            common += 1
        heads = first[: len(first) - common], second[: len(second) - common]
        if not common or heads[0][:-1] != heads[1][:-1]:
            raise UsageError(
                "this chat template can't be continued token by token: what it writes depends on the answer"
            )
        tail = first[len(first) - common :]
        # The sampler may have returned the end of its answer, which the tail begins with.
        return tail[1:] if sampled and sampled[-1] in self._stops and tail[0] in self._stops else tail

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, reasoning and tool calls of an answer."""
        ids = list(sampled)
        if ids and ids[-1] in self._stops:
            ids.pop()
        written = self._decode(ids, skip_special_tokens=True)
        thinking, text = split_thinking(f"<think>{written}" if self._opens_thinking else written)
        if self._opens_thinking and not thinking and text.startswith("<think>"):
            return ParsedAnswer("", written)  # cut before the thinking ended
        if not tools:
            return ParsedAnswer(text, thinking)
        content, calls = tool_text.parse_calls(text, tools)
        return ParsedAnswer(content, thinking, calls)

    def _apply(self, chat: list[dict[str, Any]], tools: Sequence[ToolDefinition]) -> list[int]:
        schemas = [tool_text.schema(tool) for tool in tools] or None
        with self._lock:
            return list(
                self._tokenizer.apply_chat_template(
                    chat,
                    tools=schemas,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    **self._template_kwargs,
                )
            )

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        with self._lock:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


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
    return value if isinstance(value, dict) else {"input": call.arguments}
