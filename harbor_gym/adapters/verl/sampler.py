"""verl's LLM servers as the sampler of one episode."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harbor_gym.errors import ContextOverflowError, SamplerError, UsageError
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.sequences import SequenceBuilder
from harbor_gym.types import Sample


class Servers(Protocol):
    """The part of verl's ``LLMServerClient`` that an episode uses."""

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Return verl's ``TokenOutput`` for a prompt."""
        ...


@dataclass
class ServerSampler:
    """The sampler of one episode. Its requests share an id, which keeps them on one server and its prefix cache.

    Args:
        servers: verl's client.
        params: verl's sampling parameters.
        request_id: The episode's id.
        priority: verl's priority of the row.
        stop: Tokens that end an answer.
        max_prompt_tokens: Longest first prompt of a conversation (``rollout.prompt_length``).
        max_response_tokens: Most tokens after it, including a full answer (``rollout.response_length``).
        max_answer_tokens: Longest answer.
    """

    servers: Servers
    params: Mapping[str, Any]
    request_id: str
    priority: int
    stop: Collection[int]
    max_prompt_tokens: int
    max_response_tokens: int
    max_answer_tokens: int
    seconds: float = field(default=0.0, init=False)
    """Seconds that the servers have taken so far."""

    preempted: int = field(default=-1, init=False)
    """Number of preemptions; -1 if the servers do not report it."""

    versions: list[int] = field(default_factory=list[int], init=False)
    """The first and the last training step of the weights of each answer, if the servers report them."""

    _conversations: list[SequenceBuilder] = field(default_factory=list[SequenceBuilder], init=False)

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample one message.

        Raises:
            ContextOverflowError: The prompt does not fit verl's lengths, or the servers' window.
            SamplerError: The servers failed, or aborted the request.
        """
        tokens = list(prompt)
        conversation = next((item for item in reversed(self._conversations) if item.is_extended_by(tokens)), None)
        self._require_room(len(tokens if conversation is None else conversation.build().prompt), len(tokens))
        started = time.monotonic()
        try:
            output = await self.servers.generate(
                request_id=self.request_id,
                prompt_ids=tokens,
                sampling_params={**self.params, "max_tokens": self.max_answer_tokens},
                priority=self.priority,
            )
        except Exception as exc:  # the boundary to verl's servers: any exception is the engine's failure
            reason = getattr(exc, "cause", None) or exc  # Ray's own message is the worker's whole traceback
            what = f"verl's LLM server failed: {type(reason).__name__}: {reason}"
            raise (ContextOverflowError if is_overflow(400, str(reason)) else SamplerError)(what) from exc
        finally:
            self.seconds += time.monotonic() - started
        sample = self._read(output)
        if conversation is None:
            self._conversations.append(conversation := SequenceBuilder())
        conversation.extend(tokens, sample, call=0)
        return sample

    def _require_room(self, first: int, tokens: int) -> None:
        if first > self.max_prompt_tokens:
            raise ContextOverflowError(
                f"the first prompt has {first} tokens, and rollout.prompt_length is {self.max_prompt_tokens}"
            )
        if tokens - first + self.max_answer_tokens > self.max_response_tokens:
            raise ContextOverflowError(
                f"{tokens - first} tokens follow the first prompt: an answer of {self.max_answer_tokens} more does not "
                f"fit rollout.response_length, {self.max_response_tokens}"
            )

    def _read(self, output: Any) -> Sample:
        if output.stop_reason in ("abort", "aborted"):
            raise SamplerError("verl's LLM server aborted the request")
        if getattr(output, "routed_experts", None) is not None:
            raise UsageError("harbor_gym's loops hand no routed experts on to verl: turn its routing replay off")
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        steps = [output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")]
        self.versions += [step for step in steps if step is not None]
        tokens = [int(token) for token in output.token_ids]
        # vLLM's servers also report "completed" for an answer that was cut.
        is_full = len(tokens) >= self.max_answer_tokens and tokens[-1] not in self.stop
        is_cut = output.stop_reason == "length" or (output.stop_reason != "stop" and is_full)
        reason: Literal["length", "stop"] = "length" if is_cut else "stop"
        if not self.params.get("logprobs"):
            return Sample(tokens, None, reason)
        logprobs = [float(logprob) for logprob in output.log_probs or ()]
        if len(logprobs) != len(tokens):
            raise SamplerError(f"verl's LLM server gave {len(logprobs)} log-probabilities for {len(tokens)} tokens")
        return Sample(tokens, logprobs, reason)
