"""The token environment, for any training framework: sampled tokens are never rendered or tokenised again."""

import asyncio
import copy
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

from harbor_gym.codecs import ComparesTemplate
from harbor_gym.compaction import Limits, Prompt
from harbor_gym.config import Snapshot, TerminalEnvConfig
from harbor_gym.config.snapshot import read_start, settings_of
from harbor_gym.errors import UsageError
from harbor_gym.formats import prompts
from harbor_gym.outcomes import losing_one_episode
from harbor_gym.terminal.screen.observation import Excerpt, compose
from harbor_gym.transcripts import conversations
from harbor_gym.types import (
    ChatCodec,
    ChatMessage,
    Compaction,
    EndReason,
    EpisodeInfo,
    ForkMode,
    RoutedExperts,
    StopReason,
    Summary,
    TokenStep,
    Transcript,
    Turn,
)

__all__ = ["TokenTerminalEnv"]

if TYPE_CHECKING:
    from harbor_gym.wrappers import Forkable, TerminalEnv

_OF_TOKENS = (
    *("prompt_tokens", "sampled_tokens", "logprobs", "version", "thinking_sec", "queued_sec", "summaries"),
    *("compaction", "routed_experts"),
)
"""The fields of a turn that the wrapped environment does not know."""

_LEAST_SHOWN_BYTES = 200
"""An observation that can't fit is cut, but not to less than this; the least of ``max_observation_bytes``."""

_logger = logging.getLogger(__name__)

_SUMMARY_TRIES = 2


class TokenTerminalEnv:
    """Drive an environment, a :class:`harbor_gym.wrappers.TerminalEnv`, with sampled tokens.

    The prompt after turn *t* is, token for token: the prompt of turn *t*, the sampled tokens untouched, and the next
    user message. The instruction is sent once. With ``TerminalEnvConfig.compaction`` a prompt that becomes too long is
    made shorter from the same tokens, and a new conversation begins: ``info["compacted"]`` and, at the end,
    ``compactions`` in the metrics. With ``compaction="summary"`` a prompt may ask for a summary; its answer is given to
    :meth:`step` as any other and is no turn: ``info["summary"]``. Where the codec can compare them with its chat
    template (:class:`harbor_gym.codecs.ComparesTemplate`, as ``HFCodec`` can), ``off_template_turns`` in the metrics of
    the end counts the earlier answers that the template would have written differently, for instance without their
    thinking.

    Args:
        env: The environment. This object owns it from now on.
        codec: Writes and reads chats in the model family's format.
        max_tokens: The sampler's limit for one message, in tokens; reserved when the context limit is checked.
        max_context_tokens: The model's context window in tokens; None sets no limit.

    ``async with`` closes it at the end of the block.
    """

    def __init__(
        self, env: "TerminalEnv", codec: ChatCodec, *, max_tokens: int, max_context_tokens: int | None = None
    ) -> None:
        self.env = env
        self.transcript = Transcript()
        self._codec = codec
        self._max_tokens = max_tokens
        self._max_context_tokens = max_context_tokens
        self._limits = Limits.of(None, max_tokens=max_tokens, max_context_tokens=max_context_tokens)
        self._prompt = Prompt()
        self._request: list[int] | None = None
        """The prompt that asks for a summary, in place of ``_prompt``; None if none is asked for."""

        self.summary: Summary | None = None
        """The last answer, if it was one to the request for a summary."""

        self._compactions = 0
        self._shown = ""
        self._shown_at = 0.0
        self._off_template_turns = 0
        self._origin: Snapshot | None = None
        """The snapshot at which a copy begins, with the prompt in tokens and the transcript so far."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.env!r}: {len(self._prompt.tokens)} prompt tokens>"

    async def reset(self) -> TokenStep:
        """Start an episode; the returned step holds the first prompt, or is done if that prompt would not fit.

        With ``TerminalEnvConfig.start_from``, and in a copy, the first prompt is the original episode's prompt at that
        turn, token for token.

        Raises:
            HarborGymError: As :meth:`harbor_gym.AsyncTerminalGymEnv.reset`.
            UsageError: The episode of ``start_from`` has no tokens, or tokens of another tokenizer; or ``compact_at``
                does not fit the context window.
        """
        self._set_limits()
        self.transcript = Transcript(system_prompt=prompts.system_message(self.env.config))
        origin = self._origin or await asyncio.to_thread(_read_origin, self.env.config, self._codec)
        screen, info = await self.env.reset()
        self.transcript.settings = settings_of(self.env.config)
        if origin is not None:
            self._go_on(origin)
            self.transcript.start_info = info
            return await self._first_step(info)
        opening = prompts.opening(self.env.config, info.get("instruction", ""), screen)
        self.transcript.system_prompt, self.transcript.start_info = opening.system, info
        self._off_template_turns = self._compactions = 0
        self._request = self.summary = None
        self._shown = opening.first
        messages = cast("list[ChatMessage]", opening.messages)
        self._prompt = Prompt(await asyncio.to_thread(self._codec.prompt, messages))
        self.transcript.tokens = self._prompt.tokens
        size, room = len(self._prompt.tokens), self._limits.summary_at
        if room is not None and size > room:
            _logger.warning(
                "compaction=summary: the first prompt has %d tokens, and beside more than %d no summary fits: older "
                "turns are left out instead; make the context larger, or max_tokens smaller",
                size,
                room,
            )
        return await self._first_step(info)

    async def snapshot(self, *, mode: ForkMode = "replay") -> Snapshot:
        """Return the episode so far with its tokens; see :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot`."""
        taken = await self._forkable().snapshot(mode=mode)
        turns = [
            replace(
                raw,
                **{name: getattr(mine, name) for name in _OF_TOKENS},
                info=raw.info if mine.compaction is None else {**raw.info, "compacted": mine.info.get("compacted", "")},
            )
            for raw, mine in zip(taken.turns, self.transcript.turns, strict=False)
        ]
        return replace(taken, turns=tuple(turns), tokens=tuple(self._prompt.tokens))

    async def fork(self, n: int, *, mode: ForkMode = "auto") -> list[Self]:
        """Copy the running episode; see :meth:`harbor_gym.AsyncTerminalGymEnv.fork`.

        Each copy's next prompt is this episode's, token for token, and its transcript has the turns so far. Call its
        ``step``, or give it to :func:`harbor_gym.run_episode`, whose transitions begin at the copy's first own turn.
        """
        env, tokens, turns = self._forkable(), tuple(self._prompt.tokens), tuple(self.transcript.turns)
        origin = replace(await env.snapshot(), turns=turns, observation=self._shown, tokens=tokens)
        return [self._copy(each, origin) for each in await env.fork(n, mode=mode)]

    async def rollback(self, to: int | Snapshot) -> TokenStep:
        """Return the running episode to an earlier turn; see :meth:`harbor_gym.AsyncTerminalGymEnv.rollback`.

        The prompt is that of the turn, token for token. :attr:`transcript` no longer has the turns since, so that
        nothing of them is trained.

        Args:
            to: A snapshot that this object made, or the number of turns that are kept.

        Raises:
            HarborGymError: As :meth:`harbor_gym.AsyncTerminalGymEnv.rollback`.
            UsageError: The snapshot has no tokens.
        """
        taken = to if isinstance(to, Snapshot) else (await self.snapshot()).at(to)
        if taken.tokens is None:
            raise UsageError("the snapshot has no tokens: take it by TokenTerminalEnv.snapshot")
        _, info = await self._forkable().rollback(taken)
        self._go_on(taken)
        self.transcript.start_info = info
        return await self._first_step(info)

    def _forkable(self) -> "Forkable":
        from harbor_gym.wrappers import require_forkable

        return require_forkable(self.env)

    def _copy(self, env: "TerminalEnv", origin: Snapshot) -> Self:
        other = copy.copy(self)
        other.env, other._origin = env, origin
        other._go_on(origin)
        return other

    def _go_on(self, origin: Snapshot) -> None:
        system_prompt, self.transcript = self.transcript.system_prompt, origin.transcript
        self.transcript.system_prompt = system_prompt
        self._prompt = Prompt.of(origin.turns, origin.tokens or ())
        self._shown, self._shown_at = origin.observation, time.monotonic()
        self._off_template_turns = 0
        self._compactions = sum(turn.compaction is not None for turn in origin.turns)
        self.summary, is_new = None, not origin.turns or origin.turns[-1].compaction is not None
        self._request = None if is_new or not self._is_long(self._prompt) else self._asking(self._prompt)

    async def _first_step(self, info: EpisodeInfo) -> TokenStep:
        prompt = self._request or self._prompt.tokens
        if not self._limits.fits(prompt):
            return await self.truncate(EndReason.CONTEXT_OVERFLOW)
        self._shown_at = time.monotonic()
        return TokenStep(list(prompt), 0.0, False, info)

    async def step(
        self,
        sampled: Sequence[int],
        *,
        stop_reason: StopReason = "stop",
        logprobs: Sequence[float] | None = None,
        version: int | None = None,
        queued_sec: float | None = None,
        routed_experts: RoutedExperts | None = None,
    ) -> TokenStep:
        """Act on one sampled message; or, where the last prompt asked for a summary, begin a new conversation with it.

        Args:
            sampled: The tokens as they were sampled, with the stop token if the sampler returns it.
            stop_reason: ``"length"`` means the message was cut at the token limit: nothing of it is executed, and
                the episode ends truncated and verified. A message without tokens counts as unreadable instead.
            logprobs: Log-probability of each token, in nats; kept in the transcript.
            version: See :attr:`harbor_gym.Sample.version`; kept in the transcript.
            queued_sec: See :attr:`harbor_gym.Sample.queued_sec`; likewise.
            routed_experts: See :attr:`harbor_gym.Sample.routed_experts`; likewise, but not those of a summary.

        Raises:
            HarborGymError: As :meth:`harbor_gym.AsyncTerminalGymEnv.step`.
            UsageError: There was no ``reset``.
        """
        if not self._prompt.tokens:
            raise UsageError("step can't be called before reset")
        with losing_one_episode("an episode in tokens"):  # a codec may raise anything at what a sandbox printed
            sampling = {"logprobs": logprobs, "version": version, "queued_sec": queued_sec}
            sampling["thinking_sec"] = time.monotonic() - self._shown_at
            if self._request is not None:
                return await self._sum_up(sampled, stop_reason, self._request, **sampling)
            self.summary = None
            return await self._step(sampled, stop_reason, routed_experts=routed_experts, **sampling)

    async def _step(self, sampled: Sequence[int], stop_reason: StopReason, **sampling: Any) -> TokenStep:
        action = await asyncio.to_thread(self._codec.text, sampled)
        step, following = await self._act(action, sampled, stop_reason)
        if step.done and isinstance(self._codec, ComparesTemplate):
            step.info["metrics"]["off_template_turns"] = self._off_template_turns
        ended = [*self._prompt.tokens, *sampled] if step.done or following.is_compacted else []
        turn = Turn(
            observation=self._shown,
            action=action,
            info=step.info,
            reward=step.reward,
            prompt_tokens=len(self._prompt.tokens),
            sampled_tokens=len(sampled),
            compaction=Compaction("window", ended, following.prompt.exchanges) if following.is_compacted else None,
            **sampling,
        )
        self.transcript.turns.append(turn)
        if step.done:
            self.transcript.final_observation = following.shown
            self.transcript.tokens = ended
        else:
            self._go_on_with(following)
        return step

    def _go_on_with(self, following: "_Following") -> None:
        self._prompt, self._shown, self._shown_at = following.prompt, following.shown, time.monotonic()
        self._request = following.request
        self._compactions += following.is_compacted
        self.transcript.tokens = self._prompt.tokens

    async def _sum_up(
        self, sampled: Sequence[int], stop_reason: StopReason, request: list[int], **sampling: Any
    ) -> TokenStep:
        """Begin a new conversation with a summary, ask once more, or leave older turns out."""
        last, turns = self.transcript.turns[-1], self.transcript.turns
        text = (await asyncio.to_thread(self._codec.text, sampled)).strip()
        answered = request[: last.prompt_tokens + last.sampled_tokens]
        self.summary = summary = Summary(text, request[len(answered) :], sampled, stop_reason, **sampling)
        last = turns[-1] = replace(last, summaries=(*last.summaries, summary), info={**last.info})
        info: EpisodeInfo = {"turn": last.info["turn"], "metrics": {}, "summary": summary.state}
        if summary.state == "used":
            following = await asyncio.to_thread(self._begin_anew, text, last.info)
            compaction = Compaction("summary", [*request, *sampled], ())
        elif len(last.summaries) < _SUMMARY_TRIES:
            self._shown_at = time.monotonic()
            return TokenStep(list(request), 0.0, False, info)
        else:
            opens_step = "instruction" in last.info
            following = await asyncio.to_thread(
                self._without_older, self._prompt, self._shown, last.info, opens_step=opens_step
            )
            compaction = Compaction("window", answered, following.prompt.exchanges)
        if not following.is_compacted:
            return await self.truncate(EndReason.CONTEXT_OVERFLOW)
        info["compacted"] = last.info["compacted"] = following.how
        turns[-1] = replace(last, compaction=compaction)
        self._go_on_with(following)
        return TokenStep(list(following.prompt.tokens), 0.0, False, info)

    async def truncate(self, reason: EndReason) -> TokenStep:
        """End the episode because the last prompt gets no answer, and verify it.

        The reward and the info are added to the last turn's, as if its ``step`` had ended the episode.

        Args:
            reason: See :meth:`harbor_gym.AsyncTerminalGymEnv.truncate`.

        Raises:
            HarborGymError: As :meth:`harbor_gym.AsyncTerminalGymEnv.truncate`.
        """
        ended, turns = await self._truncated(reason), self.transcript.turns
        if not turns:
            self.transcript.cut = ended.reward, ended.info
            return ended
        self.transcript.final_observation = self._shown
        step = _joined(turns[-1].reward, turns[-1].info, ended)
        turns[-1] = replace(turns[-1], reward=step.reward, info=step.info)
        return self._after_summary(step, reward=ended.reward)

    def _after_summary(self, step: TokenStep, *, reward: float = 0.0) -> TokenStep:
        """Return the last turn's step, made anew; after a summary the turn's own was returned before."""
        if self.summary is None:
            return step
        return replace(step, reward=reward, info={**step.info, "summary": self.summary.state})

    @property
    def trains_summaries(self) -> bool:
        """See ``TerminalEnvConfig.train_summaries``."""
        config: object = self.env.config
        return not isinstance(config, TerminalEnvConfig) or config.train_summaries

    def limit_context(self, tokens: int | None) -> None:
        """Set the context window, in tokens, unless the constructor got one.

        Raises:
            UsageError: ``compact_at`` does not fit it.
        """
        if self._max_context_tokens is None:
            self._max_context_tokens = tokens
            self._set_limits()

    def _set_limits(self) -> None:
        config: object = self.env.config
        is_asked = isinstance(config, TerminalEnvConfig) and config.compaction == "summary"
        self._limits = Limits.of(
            config,
            max_tokens=self._max_tokens,
            max_context_tokens=self._max_context_tokens,
            request_tokens=len(self._codec.next_turn([], prompts.SUMMARY_REQUEST)) if is_asked else 0,
        )

    async def close(self) -> None:
        """Stop the sandbox. Idempotent, at any time."""
        await self.env.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def compact(self) -> TokenStep | None:
        """Make the last prompt shorter, because the engine refused it.

        Returns:
            The last step with the shorter prompt, which may ask for a summary; None where none can be made, for
            instance without a ``compaction``.
        """
        turns, prompt = self.transcript.turns, self._prompt
        if not turns or not self._may_compact:
            return None
        was_asked, self._request = self._request is not None or bool(turns[-1].summaries), None
        if not was_asked and turns[-1].compaction is None and (request := self._asking(prompt)) is not None:
            self._request = request
            return self._after_summary(TokenStep(list(request), turns[-1].reward, False, turns[-1].info))
        room = min(len(prompt.tokens), self._limits.compact_at or len(prompt.tokens)) // 2
        if (shorter := await asyncio.to_thread(self._window, prompt, room)) is None:
            return None
        last = turns[-1]
        ended = prompt.tokens[: last.prompt_tokens + last.sampled_tokens]
        if last.compaction is not None:  # no answer was sampled since
            ended = last.compaction.tokens
        following = _Following(self._shown, shorter, how=_how("window", prompt, shorter))
        info: EpisodeInfo = {**last.info, "compacted": following.how}
        turns[-1] = replace(last, info=info, compaction=Compaction("window", ended, shorter.exchanges))
        self._go_on_with(following)
        return self._after_summary(TokenStep(list(shorter.tokens), last.reward, False, info))

    async def _act(
        self, action: str, sampled: Sequence[int], stop_reason: StopReason
    ) -> tuple[TokenStep, "_Following"]:
        """Return the step that an answer makes, and what follows it."""
        if stop_reason == "length" and sampled:
            return await self._truncated(EndReason.MAX_TOKENS), _Following("")
        observation, reward, done, info = await self.env.step(action)
        if self.transcript.turns and info["turn"] <= self.transcript.turns[-1].info["turn"]:
            raise UsageError("the episode was rolled back beneath its tokens: call TokenTerminalEnv.rollback")
        if done:
            self._count_compactions(info)
            return TokenStep([], reward, True, info), _Following(observation)
        following = await asyncio.to_thread(self._continue, sampled, observation, info)
        if self._limits.fits(tokens := following.request or following.prompt.tokens):
            return TokenStep(list(tokens), reward, False, info), following
        ended = await self._truncated(EndReason.CONTEXT_OVERFLOW)
        return _joined(reward, info, ended), _Following(observation)

    def _continue(self, sampled: Sequence[int], observation: str, info: EpisodeInfo) -> "_Following":
        if isinstance(self._codec, ComparesTemplate):
            self._off_template_turns += self._codec.is_off_template(sampled)
        turn = len(self.transcript.turns) + 1
        prompt = self._prompt.extended(turn, sampled, self._codec.next_turn(sampled, observation))
        if not self._is_long(prompt):
            return _Following(observation, prompt)
        if (request := self._asking(prompt)) is not None:
            return _Following(observation, prompt, request)
        return self._without_older(prompt, observation, info, opens_step="instruction" in info)

    def _without_older(self, prompt: Prompt, observation: str, info: EpisodeInfo, *, opens_step: bool) -> "_Following":
        """Return what follows once older turns are left out; the whole prompt where that makes it no shorter."""
        assert prompt.last_answer is not None, "an answer came before"
        (before, sampled), turn = prompt.last_answer, prompt.exchanges[-1].turn
        at, whole = self._limits.compact_at or len(prompt.tokens), _Following(observation, prompt)
        for shown in _cut(observation, info, cuts=not opens_step):
            prompt = before.extended(turn, sampled, self._codec.next_turn(sampled, shown))
            if self._limits.fits((self._window(prompt, 0) or prompt).tokens):
                break
        else:
            return whole
        shorter = self._window(prompt, at // 2, {turn} if opens_step else set[int]())
        if shorter is None or not self._limits.fits(shorter.tokens):
            return _Following(observation, prompt)
        info["compacted"] = how = _how("window", prompt, shorter)
        return _Following(observation, shorter, how=how)

    def _begin_anew(self, summary: str, info: EpisodeInfo) -> "_Following":
        """Return the conversation that begins with a summary; the whole prompt where it would be no shorter."""
        opens_step = "instruction" in info
        instruction = None if opens_step else self._instruction
        for shown in _cut(self._shown, info, cuts=not opens_step):
            first = prompts.after_summary(instruction, summary, shown)
            opening = prompts.Opening(self.transcript.system_prompt, first)
            prompt = Prompt(self._codec.prompt(cast("list[ChatMessage]", opening.messages)))
            if len(prompt.tokens) < len(self._prompt.tokens) and not self._is_long(prompt):
                return _Following(self._shown, prompt, how=_how("summary", self._prompt, prompt))
        return _Following(self._shown, self._prompt)

    def _asking(self, prompt: Prompt) -> list[int] | None:
        """Return the prompt that asks for a summary in place of what was shown last; None where that can't be."""
        if not self._limits.by_summary or prompt.last_answer is None:
            return None
        before, sampled = prompt.last_answer
        request = [*before.tokens, *sampled, *self._codec.next_turn(sampled, prompts.SUMMARY_REQUEST)]
        return request if self._limits.fits(request) else None

    def _is_long(self, prompt: Prompt) -> bool:
        at = self._limits.compact_at
        return at is not None and len(prompt.tokens) > at and self._may_compact

    @property
    def _instruction(self) -> str:
        """The instruction of the task or the present step."""
        infos = [*(turn.info for turn in self.transcript.turns[::-1]), self.transcript.start_info or {}]
        return next((info["instruction"] for info in infos if "instruction" in info), "")

    @property
    def _may_compact(self) -> bool:
        most = self._limits.max_compactions
        return most is None or self._compactions < most

    def _window(self, prompt: Prompt, room: int, kept: Collection[int] = ()) -> Prompt | None:
        opening = {number for number, turn in enumerate(self.transcript.turns, 1) if "instruction" in turn.info}

        def replaced(answer: Sequence[int], turns: int) -> list[int]:
            return self._codec.next_turn(answer, prompts.left_out(turns))

        return prompt.window(room, replaced, kept=opening.union(kept))

    def _count_compactions(self, info: EpisodeInfo) -> None:
        if self._limits.max_compactions != 0:
            info["metrics"]["compactions"] = self._compactions
        if self._limits.by_summary:
            tried = [summary for turn in self.transcript.turns for summary in turn.summaries]
            info["metrics"]["summary_tokens"] = sum(len(summary.tokens) for summary in tried)

    async def _truncated(self, reason: EndReason) -> TokenStep:
        _, reward, done, info = await self.env.truncate(reason)
        self._count_compactions(info)
        return TokenStep([], reward, done, info)


@dataclass(frozen=True)
class _Following:
    """What follows an answer."""

    shown: str
    """The observation, as the environment returned it: a replay compares it."""

    prompt: Prompt = field(default_factory=Prompt)
    """The next prompt; empty where there is none."""

    request: list[int] | None = None
    """The prompt that asks for a summary before that one."""

    how: str = ""
    """How the prompt was made shorter; empty if it was not."""

    @property
    def is_compacted(self) -> bool:
        """Whether the prompt was made shorter."""
        return bool(self.how)


def _how(kind: str, prompt: Prompt, shorter: Prompt) -> str:
    return f"{kind}: from {len(prompt.tokens)} to {len(shorter.tokens)} tokens"


def _cut(observation: str, info: EpisodeInfo, *, cuts: bool) -> Iterator[str]:
    """Yield an observation, then shorter ones, and note in ``info`` how many bytes are missing."""
    yield observation
    max_bytes = len(observation.encode()) * 3 // 4
    while cuts and max_bytes >= _LEAST_SHOWN_BYTES:
        cut = compose("", Excerpt(observation), max_bytes=max_bytes)
        info["omitted_bytes"] = cut.omitted_bytes
        yield cut.text
        max_bytes = max_bytes * 3 // 4


def _joined(reward: float, info: EpisodeInfo, ended: TokenStep) -> TokenStep:
    """Return a step and the truncation after it as one step."""
    metrics = {**info["metrics"], **ended.info["metrics"]}
    return TokenStep([], reward + ended.reward, True, {**info, **ended.info, "metrics": metrics})


def _read_origin(config: object, codec: ChatCodec) -> Snapshot | None:
    """Return the snapshot at which a configuration's episodes begin; None if they begin with the task.

    Raises:
        UsageError: It has no tokens, or tokens of another tokenizer.
    """
    snapshot = read_start(config)
    if snapshot is None:
        return None
    if snapshot.tokens is None:
        raise UsageError(
            "start_from: the file has no tokens, and text is never tokenised again: name the transcript of an episode "
            "that a token policy played, or a snapshot of TokenTerminalEnv.snapshot()"
        )
    known = conversations(snapshot.turns, snapshot.tokens)
    for number, (turn, tokens) in enumerate(zip(snapshot.turns, known, strict=True), start=1):
        end = turn.prompt_tokens + turn.sampled_tokens
        if not _reads_as(codec, tokens[turn.prompt_tokens : end], turn.action):
            raise UsageError(
                f"start_from: the tokens of turn {number} do not decode to its answer: another model's tokenizer or "
                "renderer wrote them, so this policy can't continue from them"
            )
    return snapshot


def _reads_as(codec: ChatCodec, sampled: Sequence[int], answer: str) -> bool:
    try:
        return codec.text(sampled) == answer
    except (ArithmeticError, LookupError, TypeError, ValueError):  # a token that is not in the vocabulary
        return False
