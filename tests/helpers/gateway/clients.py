"""Clients and policies of the gateway's tests, which change a conversation between two requests as agents do."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import aiohttp

from harbor_gym.gateway import Gateway, Session
from harbor_gym.types import Sample, Sampler, StopReason
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE

_THINKING = re.compile(r"\A\s*<think>(.*?)</think>\n*", re.DOTALL)

THOUGHT = "<think>\nI plan.\n</think>\n\n"

BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
"""A tool as chat completions declare it."""


class ThinkingCodec(CharacterCodec):
    """A codec of a thinking model: its text leaves the thinking out, and another method returns it."""

    def text(self, sampled: Sequence[int]) -> str:
        return _THINKING.sub("", super().text(sampled))

    def reasoning(self, sampled: Sequence[int]) -> str:
        found = _THINKING.match(super().text(sampled))
        return found[1].strip() if found else ""


async def play_two_turns(sampler: Sampler) -> Session:
    """Send two turns of chat to a gateway in front of a sampler; return their session."""
    async with (
        Gateway(sampler, CharacterCodec(), model="policy") as gateway,
        aiohttp.ClientSession(gateway.url) as client,
    ):
        session = gateway.open_session()
        messages: list[dict[str, Any]] = [{"role": "user", "content": "abc"}]
        for following in ("def", None):
            body = {"model": "policy", "messages": messages}
            async with client.post(f"/s/{session.key}/v1/chat/completions", json=body) as response:
                message = (await response.json())["choices"][0]["message"]
            messages += [message, {"role": "user", "content": following}]
    return session


class Script:
    """A policy that answers with one text after the other, and keeps the prompts.

    Args:
        answers: The texts.
        repeats: Whether the last text comes again and again.
        stop_reason: Of each answer.
    """

    def __init__(self, *answers: str, repeats: bool = False, stop_reason: StopReason = "stop") -> None:
        self.answers = list(answers)
        self._repeats = repeats
        self.prompts: list[list[int]] = []
        self._stop_reason: StopReason = stop_reason

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        await asyncio.sleep(0)
        self.prompts.append(list(prompt))
        is_last = self._repeats and len(self.answers) == 1
        tokens = [*map(ord, self.answers[0] if is_last else self.answers.pop(0)), END]
        return Sample(tokens, [-float(index + 1) for index in range(len(tokens))], self._stop_reason)

    @property
    def shown(self) -> list[str]:
        """The prompts as text."""
        return [text_of(prompt) for prompt in self.prompts]


class TurnPolicy:
    """A policy that thinks and gives an answer for each turn, in every conversation by its own count of answers.

    Without answers of its own it does the task of ``write_task``, declares it complete and confirms.
    """

    def __init__(self, *answers: str) -> None:
        self.answers = [THOUGHT + answer for answer in answers or (message(DONE), COMPLETE, COMPLETE)]

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        turn = text_of(prompt).count(THOUGHT)
        tokens = [*map(ord, self.answers[min(turn, len(self.answers) - 1)]), END]
        return Sample(tokens, [-0.25 * len(prompt)] * len(tokens))


def text_of(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def tool_call(name: str = "bash", /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat_body(*messages: dict[str, Any], tools: bool = False, **extra: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "policy", "messages": list(messages), **extra}
    return body | ({"tools": [BASH]} if tools else {})


async def raw_exchange(gateway: Gateway, data: bytes) -> bytes:
    """Send bytes to a gateway and return its answer until it closed the connection."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), PATIENCE_SEC)
    finally:
        writer.close()
        await writer.wait_closed()


def trained_text(session: Session) -> str:
    """Return the trained part of a session, as text."""
    return "".join(
        text_of([token for token, own in zip(segment.completion, segment.mask, strict=True) if own])
        for segment in session.trained_segments
    )
