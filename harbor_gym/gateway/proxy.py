"""The gateway in front of an OpenAI-style chat endpoint: agents of every wire, one model, its key in this process only.

Its "tokens" are the code points of a conversation as JSON lines, one message a line. They can't be trained on, because
the endpoint returns text. For evaluations::

    async with ChatEndpoint(url, model, max_tokens=4096, api_key_env="KEY") as endpoint:
        async with Gateway(ProxySampler(endpoint), ProxyCodec(), model="policy") as gateway:
            ...
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harbor_gym.formats.call_forms import looks_like_a_call
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, tool_schema
from harbor_gym.gateway.chat import Message, ParsedAnswer, split_thinking
from harbor_gym.samplers.chat import AsksChat
from harbor_gym.types import Sample


class ProxySampler:
    """Forward conversations of :class:`ProxyCodec` to an endpoint, and record the token counts that it reports.

    Args:
        endpoint: The endpoint, such as an open :class:`harbor_gym.samplers.ChatEndpoint`.
    """

    def __init__(self, endpoint: AsksChat) -> None:
        self._endpoint = endpoint
        self.last_prompt_tokens = 0
        """Length of the last prompt, in the model's tokens; 0 if the endpoint does not report it."""
        self.sampled_tokens = 0
        """Length of all answers together, in the model's tokens; 0 if the endpoint does not report it."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Return the endpoint's answer.

        Raises:
            ContextOverflowError: The conversation does not fit the endpoint's context window.
            SamplerError: The endpoint can't be reached, refuses the request, or does not answer with one message.
        """
        lines = read_lines(prompt)
        tools = next((line["tools"] for line in lines if "tools" in line), [])
        answer = await self._endpoint([line for line in lines if "role" in line], tools=tools)
        self.last_prompt_tokens = answer.prompt_tokens
        self.sampled_tokens += answer.sampled_tokens
        return Sample(_encode([answer.message]), None, answer.stop_reason)


class ProxyCodec:
    """Write a conversation with tools as JSON lines, for :class:`ProxySampler`."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[int]:
        """Return the lines of the tools and of a whole conversation."""
        declared: list[Mapping[str, Any]] = [{"tools": [tool_schema(tool) for tool in tools]}] if tools else []
        return _encode([*declared, *map(_as_line, messages)])

    def render_next(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolDefinition]
    ) -> list[int]:
        """Return the lines of the messages that follow an answer."""
        calls = _calls(_message(sampled))
        return _encode([_with_own_id(_as_line(message), calls) for message in messages])

    def parse(self, sampled: Sequence[int], tools: Sequence[ToolDefinition]) -> ParsedAnswer:
        """Return text, thinking and tool calls of an answer."""
        message = _message(sampled)
        thinking, content = split_thinking(message.get("content") or "")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or thinking
        is_unread = bool(tools) and looks_like_a_call(content)
        return ParsedAnswer(content, str(reasoning), tuple(_calls(message)), is_unread)


def _encode(items: Sequence[Mapping[str, Any]]) -> list[int]:
    return [ord(character) for item in items for character in f"{json.dumps(item)}\n"]


def read_lines(tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Return the lines of a conversation: messages as the endpoint returned them or the agent sent them, and tools."""
    return [json.loads(line) for line in "".join(map(chr, tokens)).splitlines()]


def _message(sampled: Sequence[int]) -> dict[str, Any]:
    return read_lines(sampled)[0] if sampled else {"role": "assistant", "content": ""}


def _calls(message: Mapping[str, Any]) -> list[ToolCall]:
    return [
        ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id") or f"call_{number}")
        for number, call in enumerate(message.get("tool_calls") or ())
    ]


def _as_line(message: Message) -> dict[str, Any]:
    line: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        line["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        line["tool_call_id"] = message.tool_call_id
    return line


def _with_own_id(line: dict[str, Any], calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return a tool's result with the endpoint's id of the call: in the session a call's id is its position."""
    _, _, number = str(line.get("tool_call_id", "")).rpartition("_")
    if line["role"] == "tool" and number.isdecimal() and int(number) < len(calls):
        line["tool_call_id"] = calls[int(number)].id
    return line
