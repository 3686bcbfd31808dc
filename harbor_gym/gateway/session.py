"""One episode's session: its key, its budgets, and the record of its sampled calls."""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace

from harbor_gym._runtime.console import under_way
from harbor_gym.errors import BudgetSpentError, HarborGymError, SamplerError, UsageError
from harbor_gym.gateway.bridge import Bridge, Match
from harbor_gym.gateway.chat import Answer, ChatRequest, ParsedAnswer
from harbor_gym.gateway.codec import ConversationCodec
from harbor_gym.gateway.errors import (
    ContextOverflowError,
    ErrorKind,
    InvalidRequestError,
    LastAnswersError,
    RequestError,
    SessionEndedError,
)
from harbor_gym.gateway.limits import SessionLimits
from harbor_gym.gateway.prompts import PromptStore
from harbor_gym.gateway.records import BreakReason, CallKind, CallRecord, CallTree
from harbor_gym.rollout import context_tokens_of
from harbor_gym.types import EndReason, Sample, Sampler, TokenSequence, Turn

_ENGINE_OVERFLOW = "The messages exceed the model's maximum context length. Please reduce the length of the messages."

_CHARACTERS_PER_TOKEN = 4

logger = logging.getLogger(__name__)


class Session:
    """The requests of one episode. Get one from :meth:`Gateway.open_session`.

    Args:
        sampler: Samples the answers.
        codec: Writes conversations as tokens.
        model: The policy's model name, also behind a provider (``openai/policy``); requests for another model are side
            calls. None accepts every name as the policy's.
        limits: The episode's budgets.
        name: For logs; no secret.
        on_limit: Called once, on the event loop, when a budget runs out. It must not block.
    """

    def __init__(
        self,
        sampler: Sampler,
        codec: ConversationCodec,
        *,
        model: str | None = None,
        limits: SessionLimits | None = None,
        name: str = "",
        on_limit: Callable[[EndReason], object] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.limits = limits or SessionLimits()
        self.key = secrets.token_urlsafe(24)
        """The secret that a request carries. Never logged."""
        self.base_url = ""
        """The session's URL, without a trailing slash and ``/v1``; it contains the key."""
        self.end_reason: EndReason | None = None
        """The budget that ran out, if one did."""
        self.sampler_failures: list[SamplerError] = []
        """Every failure of the sampler, in order."""
        self.usage_error: UsageError | None = None
        """The error of a sampler with wrong settings, which ended the session; every further request would fail."""
        self.opening: ChatRequest | None = None
        """The first answered request of the agent's own conversation, with its system messages and tools."""
        self.is_closed = False
        """Whether the owner closed the session. A closed session takes no requests; its records stay."""
        self.losses = 0
        """Requests so far that got no answer, for a reason that is neither a budget nor the request itself."""
        self._mended, self._was_cut = 0, False
        self._last_own_loss, self._had_failed = 0, False
        self._is_between_phases = False
        self._late_end: EndReason | None = None
        self._sampler, self._codec, self._on_limit = sampler, codec, on_limit
        self._bridge, self._tree, self._prompts = Bridge(), CallTree(), PromptStore()
        self._sampling: set[asyncio.Future[Sample]] = set()
        self._latest: tuple[CallRecord, list[int]] | None = None
        """The last call and its tokens, a cache: most requests extend it, and joining its blocks takes longer."""
        self._label = under_way.LABEL.get() or name or "an agent"
        self._active = 0
        self._under_way: Counter[bool] = Counter()
        """Calls that are being answered, by whether they are under the policy's model name."""
        self._counted_prompts = 0
        self._failed_last = False
        self._timer: asyncio.TimerHandle | None = None
        self._refused: Counter[str] = Counter()
        self._limit_reached = asyncio.Event()
        self._show_doing("waiting for its agent")

    def __repr__(self) -> str:
        return f"<Session {self.name or 'unnamed'}: {len(self._tree.calls)} calls, end reason {self.end_reason}>"

    @property
    def is_cut(self) -> bool:
        """Whether the agent lost its policy: the last request of a phase got no answer, or the tunnel ended."""
        return self.losses > self._mended or self._was_cut

    @property
    def has_failed(self) -> bool:
        """Whether the last request of a phase got no answer by the gateway's own fault: neither its client was gone,
        nor did the tunnel's program in the sandbox end."""
        return self._last_own_loss > self._mended or self._had_failed

    @property
    def active_requests(self) -> int:
        """Requests that are being read or answered."""
        return self._active

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """Every answered call, in the order of the answers."""
        return tuple(self._tree.calls)

    @property
    def segments(self) -> tuple[TokenSequence, ...]:
        """Training sequences of all calls, including side calls and unused answers."""
        return self._tree.segments()

    @property
    def trained_segments(self) -> tuple[TokenSequence, ...]:
        """Training sequences of the agent's own conversation."""
        return self._tree.segments({CallKind.MAIN})

    @property
    def used_segments(self) -> tuple[TokenSequence, ...]:
        """Training sequences of every call whose answer the agent used, including side calls."""
        return self._tree.segments({CallKind.MAIN, CallKind.SIDE})

    @property
    def kinds(self) -> dict[int, CallKind]:
        """The kind of each answered call, by its index."""
        return {call.index: kind for chain, kind in self._tree.chains() for call in chain}

    @property
    def turns(self) -> list[Turn]:
        """The agent's own conversation as text, turn by turn, without system messages and side calls. No rewards."""
        return self._tree.turns()

    @property
    def breaks(self) -> Counter[BreakReason]:
        """The number of times that the main conversation's prompt was rendered anew, by reason."""
        return self._tree.break_counts()

    @property
    def error(self) -> HarborGymError | None:
        """The sampler's failure, if no later call succeeded, or :attr:`usage_error`, which ends the run."""
        if self.usage_error is not None:
            return self.usage_error
        return self.sampler_failures[-1] if self._failed_last else None

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for aggregation, as ``gateway/...``."""
        tokens: dict[CallKind, list[int]] = {kind: [] for kind in CallKind}
        for chain, kind in self._tree.chains():
            tokens[kind].append(sum(len(call.sampled) for call in chain))
        durations = [call.duration_sec for call in self._tree.calls]
        numbers = {
            "calls": len(self._tree.calls),
            "segments": len(tokens[CallKind.MAIN]),
            "side_segments": len(tokens[CallKind.SIDE]),
            "abandoned_segments": len(tokens[CallKind.ABANDONED]),
            "sampled_tokens": sum(map(sum, tokens.values())),
            **{f"{kind}_tokens": sum(sampled) for kind, sampled in tokens.items()},
            "restarted_tokens": sum(tokens[CallKind.MAIN][1:]),
            "kept_prompt_tokens": self._prompts.kept_tokens,
            "sampler_failures": len(self.sampler_failures),
            "sampler_sec": math.fsum(durations),
            "unread_calls": sum(call.answer.is_unread_call for call in self._tree.calls),
            **{f"breaks/{reason}": count for reason, count in self.breaks.items()},
            **{f"refused/{kind}": count for kind, count in self._refused.items()},
        }
        return {f"gateway/{name}": float(number) for name, number in numbers.items()}

    @contextlib.contextmanager
    def admitted(self) -> Generator[None]:
        """Count a request against ``max_concurrent_requests``, from before its body is read until it is answered.

        Raises:
            SessionEndedError: The session takes no more requests.
            RequestError: Too many requests are being answered.
        """
        self._is_between_phases = False
        if self._late_end is not None:
            self.end(self._late_end)
        self._check_open()
        if self._active >= self.limits.max_concurrent_requests:
            raise RequestError(ErrorKind.TOO_MANY_REQUESTS, f"{self._active} requests are being answered already")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    async def answer(self, request: ChatRequest) -> tuple[Answer, CallRecord]:
        """Sample the answer to ``request`` and record it.

        Raises:
            SessionEndedError: A budget of the session or the sampler ran out, or the session is closed.
            RequestError: The request can't be answered; the session goes on.
            SamplerError: The sampler failed. It is recorded; the client may repeat the request.
        """
        is_policy_model = self._is_policy_model(request)
        with self._place_for_call(is_policy_model):
            match = self._match(request, is_policy_model)
            suffix = await self._render(match, request)
            prompt = suffix if match.parent is None else self._tokens_of(match.parent) + suffix
            self._check_context(len(prompt), is_policy_model, await self._window())
            started = time.monotonic()
            self._show_doing(f"call {len(self._tree.calls) + 1}, waiting for the model")
            try:
                sample = await self._sample(prompt, is_policy_model)
            finally:
                self._show_doing("its agent works")
            duration = time.monotonic() - started
            parsed = await self._parse(sample, request)
            call = CallRecord(
                index=len(self._tree.calls),
                parent=match.parent,
                prompt_suffix=self._prompts.keep(suffix),
                sampled=tuple(sample.tokens),
                logprobs=None if sample.logprobs is None else tuple(sample.logprobs),
                stop_reason=sample.stop_reason if sample.tokens else "stop",  # without tokens nothing was cut
                version=sample.version,
                model=request.model,
                head=match.head,
                request=match.digests[-1] + match.tools,
                has_tools=bool(request.tools),
                is_policy_model=is_policy_model,
                break_reason=match.break_reason,
                duration_sec=duration,
                messages=match.kept_messages,
                answer=parsed,
            )
            self._tree.calls.append(call)
            self._note_opening(request, is_policy_model)
            self._bridge.add(call, match, parsed)
            self._latest = call, [*prompt, *call.sampled]
        return Answer(parsed, call.stop_reason, prompt, call.sampled, call.logprobs), call

    def _note_opening(self, request: ChatRequest, is_policy_model: bool) -> None:
        # The first with tools, else the first: as CallTree finds the main conversation.
        if is_policy_model and (self.opening is None or (request.tools and not self.opening.tools)):
            self.opening = request

    def _show_doing(self, doing: str) -> None:
        under_way.note(self, self._label, None if self.is_closed else doing)

    def _tokens_of(self, call: CallRecord) -> list[int]:
        return self._latest[1] if self._latest is not None and self._latest[0] is call else call.tokens

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the length of the request's prompt, in tokens, without sampling. It counts as a call.

        Raises:
            SessionEndedError: A budget ran out, or the session is closed.
            RequestError: The request has no messages, or ends with an assistant message.
        """
        self._check_budgets()
        self._counted_prompts += 1
        match = self._match(request, self._is_policy_model(request))
        suffix = await self._render(match, request)
        return len(suffix) + (0 if match.parent is None else len(match.parent.tokens))

    def mark_delivered(self, losses: int) -> None:
        """Record that a client has its whole answer, so that the losses before its request did not stop the agent.

        Args:
            losses: :attr:`losses` when the request came; later losses are those of other requests.
        """
        self._mended = max(self._mended, losses)

    def mark_undelivered(self, call: CallRecord | None, *, by_client: bool = False) -> None:
        """Record that a client got no answer: it was gone when the answer came, or its request was refused.

        Args:
            call: The call that was answered, if one was.
            by_client: Whether the client, or the sandbox's end of the tunnel, went away.
        """
        self.losses += 1
        if not by_client:
            self._last_own_loss = self.losses
        if call is not None:
            self._tree.undelivered.add(call.index)

    def refused(self, kind: ErrorKind) -> None:
        """Count a request that was refused."""
        self._refused[kind.name.lower()] += 1

    def end(self, reason: EndReason) -> None:
        """End the episode: requests that are being answered fail, later ones are refused. Idempotent.

        Between the end of the agent's program and the next step's first request, the end is postponed to that request.
        """
        if self.end_reason is not None or self.is_closed:
            return
        if self._is_between_phases:
            self._late_end = reason
            return
        self.end_reason = reason
        self._limit_reached.set()
        self._stop()
        if self._on_limit is not None:
            try:
                self._on_limit(reason)
            except Exception:  # The failure of a caller's callback must not reach the agent as an answer.
                logger.exception("the on_limit callback of session %s failed", self.name)

    async def wait_for_limit(self) -> EndReason:
        """Wait until a budget runs out, and return its end reason. Never returns if none does."""
        await self._limit_reached.wait()
        assert self.end_reason is not None
        return self.end_reason

    def end_phase(self) -> None:
        """Record that the agent's program ended; later answers no longer make up for its lost requests."""
        self._was_cut, self._had_failed = self.is_cut or self._active > 0, self.has_failed
        self._is_between_phases = True

    def close(self) -> None:
        """Refuse all further requests and cancel those that are being answered. Idempotent; the records stay."""
        self.end_phase()
        self.is_closed = True
        self._show_doing("")
        self._stop()

    def _stop(self) -> None:
        self._latest = None
        if self._timer is not None:
            self._timer.cancel()
        for sampling in self._sampling:
            sampling.cancel()

    def _check_open(self) -> None:
        if self.end_reason is not None or self.is_closed:
            raise SessionEndedError(self.end_reason)

    def _start_timer(self) -> None:
        if self._timer is None and self.limits.time_limit_sec is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.limits.time_limit_sec, self.end, EndReason.TIME_LIMIT)

    @contextlib.contextmanager
    def _place_for_call(self, is_policy_model: bool) -> Generator[None]:
        """Reserve a call in the budgets until it is recorded or has failed.

        Raises:
            SessionEndedError: A budget ran out, or the session is closed.
            RequestError: The calls under way may be the last ones: the episode must not end before they are answered.
        """
        self._start_timer()
        self._check_budgets()
        limits = self.limits
        turns = limits.max_turns if is_policy_model else None
        if _is_spent(turns, self._turns + self._under_way[True]) or _is_spent(limits.call_limit, self._all_calls):
            raise LastAnswersError
        self._under_way[is_policy_model] += 1
        try:
            yield
        finally:
            self._under_way[is_policy_model] -= 1

    @property
    def _turns(self) -> int:
        return sum(call.is_policy_model for call in self._tree.calls)

    @property
    def _all_calls(self) -> int:
        """Calls that count against ``max_calls``, including unfinished ones."""
        return len(self._tree.calls) + self._counted_prompts + self._under_way.total()

    def _check_budgets(self) -> None:
        limits = self.limits
        kept = max(self._prompts.kept_tokens, self._bridge.kept_characters // _CHARACTERS_PER_TOKEN)
        sampled = sum(len(call.sampled) for call in self._tree.calls)
        if _is_spent(limits.max_turns, self._turns) or _is_spent(
            limits.call_limit, self._all_calls - self._under_way.total()
        ):
            self.end(EndReason.MAX_TURNS)
        if _is_spent(limits.max_sampled_tokens, sampled) or _is_spent(limits.prompt_token_limit, kept):
            self.end(EndReason.MAX_TOKENS)
        self._check_open()

    async def _window(self) -> int | None:
        """Return the context window: the session's, or else the one that the sampler's engine reports."""
        own = self.limits.max_context_tokens
        return await context_tokens_of(self._sampler) if own is None else own

    def _check_context(self, prompt_tokens: int, is_policy_model: bool, window: int | None) -> None:
        reserved = self.limits.max_answer_tokens
        if window is None or prompt_tokens + reserved <= window:
            return
        self._end_on_overflow(is_policy_model)
        raise ContextOverflowError(prompt_tokens, reserved, window)

    def _end_on_overflow(self, is_policy_model: bool) -> None:
        if is_policy_model and self.limits.overflow_ends_episode:
            self.end(EndReason.CONTEXT_OVERFLOW)

    def _is_policy_model(self, request: ChatRequest) -> bool:
        # Some agents keep a provider before the name: "anthropic/policy".
        return self.model is None or request.model == self.model or request.model.endswith(f"/{self.model}")

    def _match(self, request: ChatRequest, is_policy_model: bool) -> Match:
        if not request.messages:
            raise InvalidRequestError("the request has no messages")
        if request.messages[-1].role == "assistant":
            raise InvalidRequestError("the last message is the assistant's: a prefilled answer can't be continued")
        return self._bridge.match(request, is_policy_model=is_policy_model)

    async def _render(self, match: Match, request: ChatRequest) -> list[int]:
        if match.parent is None:
            return await asyncio.to_thread(self._codec.render, match.messages, request.tools)
        # A list, as loops without a gateway pass it: codecs compare slices of it with lists.
        sampled = list(match.parent.sampled)
        return await asyncio.to_thread(self._codec.render_next, sampled, match.messages, request.tools)

    async def _parse(self, sample: Sample, request: ChatRequest) -> ParsedAnswer:
        tools = () if request.max_calls == 0 else request.tools
        parsed = await asyncio.to_thread(self._codec.parse, sample.tokens, tools)
        return replace(parsed, tool_calls=parsed.tool_calls[: request.max_calls])

    async def _sample(self, prompt: list[int], is_policy_model: bool) -> Sample:
        self._check_open()
        sampling = asyncio.ensure_future(self._sampler(list(prompt)))
        self._sampling.add(sampling)
        try:
            sample = (await sampling).checked()
            if sample.routed_experts is not None:
                raise UsageError("the gateway hands on no routed experts: let the sampler ask for none")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._check_open()  # the session ended, and cancelled the sampling only
            raise self._failed("the sampling was cancelled") from None
        except BudgetSpentError as exc:
            if exc.reason == EndReason.CONTEXT_OVERFLOW:
                self._end_on_overflow(is_policy_model)
                raise RequestError(ErrorKind.CONTEXT_OVERFLOW, _ENGINE_OVERFLOW) from exc
            self.end(EndReason(exc.reason))
            raise SessionEndedError(self.end_reason) from exc
        except UsageError as exc:
            # Each further answer would fail, too: the run must end, not this episode alone.
            self.usage_error = exc.with_traceback(None)
            self.end(EndReason.INFRASTRUCTURE_ERROR)
            raise SessionEndedError(self.end_reason) from None
        except Exception as exc:  # The boundary to the sampler: any exception is the sampler's failure.
            raise self._failed(f"{type(exc).__name__}: {exc}") from exc
        finally:
            self._sampling.discard(sampling)
        self._failed_last = False
        return sample

    def _failed(self, what: str) -> SamplerError:
        """Record a failure, and return an equal error to raise: the traceback of a raised one would keep the prompt."""
        error = SamplerError(f"the sampler of session {self.name or 'unnamed'} failed: {what}")
        self.sampler_failures.append(error)
        self._failed_last = True
        return SamplerError(str(error))


def _is_spent(limit: int | None, used: int) -> bool:
    return limit is not None and used >= limit
