"""verl's LLM servers as a sampler of one episode."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harbor_gym.errors import ContextOverflowError, SamplerError
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.sequences import SequenceBuilder
from harbor_gym.types import Sample


class Servers(Protocol):
    """What an episode asks of verl's ``LLMServerClient``."""

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Return verl's ``TokenOutput`` for a prompt."""
        ...


@dataclass
class ServerSampler:
    """The policy of one episode. Its requests share an id, which keeps them on one server and its prefix cache.

    Args:
        servers: verl's client.
        params: verl's sampling parameters.
        request_id: The episode's id.
        priority: verl's, of the row.
        stop: Tokens that end an answer.
        max_prompt_tokens: Limit of a conversation's first prompt (``rollout.prompt_length``).
        max_response_tokens: Limit of all that follows it, with an answer of full length (``rollout.response_length``).
        max_answer_tokens: Limit of one answer.
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
    """Spent in the servers so far."""

    preempted: int = field(default=-1, init=False)
    """How often requests were preempted; -1 where the servers do not tell."""

    versions: list[int] = field(default_factory=list[int], init=False)
    """The first and the last weights' step of each answer, where the servers tell."""

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
        except Exception as exc:  # whatever a foreign server raises: here it becomes an engine that failed
            reason = getattr(exc, "cause", None) or exc  # Ray's own text is the whole traceback of the worker
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
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        steps = [output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")]
        self.versions += [step for step in steps if step is not None]
        tokens = [int(token) for token in output.token_ids]
        # vLLM's servers say "completed" of an answer that was cut, too.
        is_full = len(tokens) >= self.max_answer_tokens and tokens[-1] not in self.stop
        is_cut = output.stop_reason == "length" or (output.stop_reason != "stop" and is_full)
        reason: Literal["length", "stop"] = "length" if is_cut else "stop"
        if not self.params.get("logprobs"):
            return Sample(tokens, None, reason)
        logprobs = [float(logprob) for logprob in output.log_probs or ()]
        if len(logprobs) != len(tokens):
            raise SamplerError(f"verl's LLM server gave {len(logprobs)} log-probabilities for {len(tokens)} tokens")
        return Sample(tokens, logprobs, reason)
