"""An OpenAI-style chat endpoint as the policy of the text environment. For evaluation, and trainers that record tokens.

Nothing is tokenised here. A trainer that needs tokens serves the endpoint itself, for instance by the gateway.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from harbor_gym.config import require_one_conversation
from harbor_gym.config.snapshot import KeepSnapshot, Snapshot, read_start, settings_of, suspending
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import BudgetSpentError, HarborGymError, SamplerError
from harbor_gym.formats import parse_action, prompts
from harbor_gym.formats.call_forms import looks_like_a_call
from harbor_gym.formats.tool_text import ToolCall, reply_messages, write_calls
from harbor_gym.samplers.attempts import AnswerError
from harbor_gym.samplers.engine_client import EngineClient
from harbor_gym.samplers.usage import reported
from harbor_gym.transcripts import traced
from harbor_gym.types import ActionFormat, EndReason, ForkMode, Rollout, StepResult, StopReason, Transcript, Turn

_RETURNED = ("content", "tool_calls", "reasoning_content", "reasoning", "reasoning_details", "refusal")
"""Fields of an answer that the next request repeats, so that a server that records turns recognises its answer."""

type Messages = list[dict[str, Any]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatAnswer:
    """One answer of a chat endpoint."""

    text: str
    """The content, followed by tool calls as text."""

    message: Mapping[str, Any]
    """The message for the next request's history."""

    stop_reason: StopReason = "stop"
    """Why sampling stopped."""

    prompt_tokens: int = 0
    """Length of the prompt in tokens, as the endpoint reports it; 0 if it does not."""

    sampled_tokens: int = 0
    """Length of the answer in tokens, as the endpoint reports it; 0 if it does not."""


class AsksChat(Protocol):
    """The interface of :class:`ChatEndpoint` and its wrappers."""

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatAnswer:
        """Return the answer to a chat.

        Args:
            messages: The whole chat, with ``ChatAnswer.message`` for earlier answers.
            tools: Tools that the model may call, in the format of chat completions.

        Raises:
            ContextOverflowError: The chat does not fit the context window.
            SamplerError: There is no answer.
        """
        ...


class ChatEndpoint(EngineClient):
    """Client of an OpenAI-style endpoint (``POST /v1/chat/completions``), for any number of concurrent episodes.

    Use it as an async context manager.

    Args:
        base_url: The endpoint's address, with or without ``/v1``.
        model: Model name, as the endpoint knows it.
        max_tokens: Longest answer, in tokens; None leaves it to the endpoint.
        temperature: Sampling temperature; None leaves it to the endpoint.
        api_key_env: Name of the environment variable that holds the key; None sends no key.
        timeout_sec: Longest wait for one answer, in seconds; None is no limit.
        max_attempts: Most attempts at a request while the endpoint can't be reached, fails, or is overloaded.
        extra_body: Further fields of each request, such as ``tools`` or ``reasoning_effort``.
        api_key: The key itself, if it is in no environment variable, such as one made for a single episode.

    Raises:
        UsageError: The variable ``api_key_env`` is not set, or ``api_key`` is given as well.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        max_tokens: int | None,
        temperature: float | None = None,
        api_key_env: str | None = None,
        timeout_sec: float | None = 600.0,
        max_attempts: int = 4,
        extra_body: Mapping[str, Any] | None = None,
        api_key: str | None = None,
    ) -> None:
        super().__init__(
            base_url,
            "/v1/chat/completions",
            api_key_env=api_key_env,
            timeout_sec=timeout_sec,
            max_attempts=max_attempts,
            api_key=api_key,
        )
        self._body: dict[str, Any] = {"model": model, **(extra_body or {})}
        if max_tokens is not None:
            self._body.setdefault("max_tokens", max_tokens)
        if temperature is not None:
            self._body["temperature"] = temperature

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatAnswer:
        """Return the answer to a chat.

        Args:
            messages: See :meth:`AsksChat.__call__`.
            tools: See :meth:`AsksChat.__call__`.

        Raises:
            ContextOverflowError: The chat does not fit the context window.
            SamplerError: The endpoint can't be reached, refuses the request, or does not answer with one message.
            UsageError: The endpoint is not open.
        """
        declared = {"tools": list(tools)} if tools else {}
        return await self._post({**self._body, **declared, "messages": list(messages)}, _read_answer)


@traced
async def run_chat_episode(
    env: AsyncTerminalGymEnv,
    ask: Callable[[Messages], Awaitable[ChatAnswer]],
    *,
    ends_without_tool_call: bool = False,
    keep: KeepSnapshot | None = None,
) -> Rollout:
    """Run one episode to its end and close the environment.

    The chat of an episode that continues another one (``start_from``, ``fork``) begins with that one's messages.

    Args:
        env: A text environment; it is closed in any case.
        ask: Called once a turn with the whole chat, such as a :class:`ChatEndpoint`. Its :class:`BudgetSpentError` ends
            the episode truncated.
        ends_without_tool_call: Whether, in the format ``bash-tool``, an answer without a tool call ends the policy's
            work (``EndReason.NO_TOOL_CALL``) instead of counting as unreadable.
        keep: Called with a snapshot before each answer but the first; see :data:`KeepSnapshot` for a cancellation.

    Returns:
        The chat (``messages``) and its reward, with the sum of each metric over the turns. A failure of sandbox,
        terminal, verifier or endpoint comes back as ``INFRASTRUCTURE_ERROR``, without a reward.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can repair.
    """
    messages: Messages = []
    transcript = Transcript(system_prompt=prompts.system_message(env.config))
    try:
        require_one_conversation(env.config, "a chat model")
        origin = await asyncio.to_thread(read_start, env.config)
        screen, transcript.start_info = await env.reset()
        transcript.settings = settings_of(env.config)
        opening = prompts.opening(env.config, transcript.start_info.get("instruction", ""), screen)
        if origin is not None and origin.turns:
            transcript.turns.extend(origin.turns)
            opening, screen = opening._replace(first=origin.turns[0].observation), origin.observation
        earlier = len(transcript.turns)
        messages.extend(opening.messages)
        shown = opening.first
        following = [*(turn.observation for turn in transcript.turns[1:]), screen]
        for turn, shown in zip(transcript.turns, following, strict=False):
            messages += [{"role": "assistant", "content": turn.action}, {"role": "user", "content": shown}]
        if origin is not None and origin.messages is not None:
            messages[:] = map(dict, origin.messages)

        async def take(mode: ForkMode) -> Snapshot:
            known = await env.snapshot(mode=mode)
            return replace(known, turns=tuple(transcript.turns), messages=tuple(messages))

        thinking_sec = 0.0

        async def asked(chat: Messages) -> ChatAnswer:
            nonlocal thinking_sec
            async with suspending(keep if transcript.turns else None, take):
                started = time.monotonic()
                answer = await ask(chat)
                thinking_sec = time.monotonic() - started
                return answer

        while True:
            result, answer = await _take_turn(env, asked, messages, ends_without_tool_call=ends_without_tool_call)
            if answer is None:
                transcript.cut = result.reward, result.info
                break
            lengths = answer.prompt_tokens, answer.sampled_tokens
            turn = Turn(shown, answer.text, result.info, result.reward, *lengths, thinking_sec=thinking_sec)
            transcript.turns.append(turn)
            if result.done:
                break
            shown = result.observation
            messages += reply_messages(answer.message.get("tool_calls") or (), shown)
    except HarborGymError as exc:
        if not exc.is_infrastructure:
            raise
        return Rollout.lost(exc, messages=messages, transcript=transcript)
    finally:
        await env.close()
    metrics: dict[str, float] = {}
    for info in (transcript.start_info, *transcript.infos[1 + earlier :]):
        metrics |= {name: metrics.get(name, 0.0) + value for name, value in info["metrics"].items()}
    return Rollout.ended(result.info, transcript.reward, messages=messages, transcript=transcript, metrics=metrics)


async def _take_turn(
    env: AsyncTerminalGymEnv,
    ask: Callable[[Messages], Awaitable[ChatAnswer]],
    messages: Messages,
    *,
    ends_without_tool_call: bool,
) -> tuple[StepResult, ChatAnswer | None]:
    try:
        answer = await ask(list(messages))
    except BudgetSpentError as exc:
        logger.info("an episode ends: %s", exc)
        return await env.truncate(EndReason(exc.reason)), None
    messages.append(dict(answer.message))
    if answer.stop_reason == "length":
        return await env.truncate(EndReason.MAX_TOKENS), answer
    if ends_without_tool_call and _calls_nothing(env, answer):
        return await env.finish(EndReason.NO_TOOL_CALL), answer
    return await env.step(answer.text), answer


def _calls_nothing(env: AsyncTerminalGymEnv, answer: ChatAnswer) -> bool:
    if env.config.action_format is not ActionFormat.BASH_TOOL or looks_like_a_call(answer.text):
        return False
    return parse_action(answer.text, format=ActionFormat.BASH_TOOL, tools=env.tools).error is not None


def _read_answer(answer: object) -> ChatAnswer:
    match answer:
        case {"choices": [{"finish_reason": str() as reason, "message": {**rest}}], **envelope}:
            message = cast("dict[str, Any]", rest)
        case _:
            raise AnswerError("the endpoint's answer holds no single message")
    if reason not in ("stop", "tool_calls", "length"):
        raise SamplerError(f"the endpoint ended a message with {reason!r:.200}, which is neither stop nor length")
    given = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise AnswerError("the endpoint's message has tool calls that are no list")
    calls = [_read_call(call) for call in cast("list[object]", given)]
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise AnswerError("the endpoint's message has a content that is not text")
    usage = envelope.get("usage")
    return ChatAnswer(
        write_calls(content or "", calls),
        {"role": "assistant", **{name: message[name] for name in _RETURNED if message.get(name) is not None}},
        "length" if reason == "length" else "stop",
        reported(usage, "prompt_tokens") or 0,
        reported(usage, "completion_tokens") or 0,
    )


def _read_call(call: object) -> ToolCall:
    match call:
        case {"function": {"name": str() as name, "arguments": str() as arguments}}:
            return ToolCall(name, arguments)
        case _:
            raise AnswerError("the endpoint's message has a tool call without name and arguments")
