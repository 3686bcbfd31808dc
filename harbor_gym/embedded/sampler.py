"""A sampler over a model of transformers in this process: a policy without an engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.shielded import shielded
from harbor_gym.embedded.policy import training_stack
from harbor_gym.errors import ContextOverflowError, SamplerError, UsageError
from harbor_gym.types import Sample

with training_stack():
    from harbor_gym.embedded.engine.devices import kept_bytes
    from harbor_gym.embedded.engine.generation import Generation, Request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from transformers import PreTrainedModel


@dataclass(slots=True, eq=False)
class _Waiting:
    request: Request
    asked_at: float
    answer: Sample | SamplerError | None = None


class TransformersSampler:
    """Sample from a causal language model in this process, as a sampler of any number of concurrent episodes.

    Prompts that wait at the same time are sampled together, in a thread. The keys and values of earlier turns are kept:
    a prompt that continues a known one costs its new tokens only. A message's log-probabilities are the model's own,
    at temperature 1.

    Args:
        model: A causal language model of transformers, such as ``AutoModelForCausalLM.from_pretrained`` returns;
            Llama's and Qwen3's were run. It computes on its own device. Change its weights only within
            :meth:`changing_weights`.
        max_tokens: Longest answer, in tokens.
        temperature: Sampling temperature; 0 is greedy.
        stop_token_ids: Tokens that end an answer, such as the codec's ``stop``, in addition to the model's own.
        seed: Decides the answers, as far as prompts come in the same order.
        sequences_at_once: Most prompts that are sampled together.
        kept_mib: Most memory of the keys and values that are kept, in MiB. On a GPU also at most an eighth of what is
            free.

    Raises:
        UsageError: A number is out of range, or no token ends an answer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        stop_token_ids: Sequence[int] = (),
        seed: int = 0,
        sequences_at_once: int = 8,
        kept_mib: int = 1024,
    ) -> None:
        if max_tokens < 1 or sequences_at_once < 1 or kept_mib < 0 or temperature < 0:
            raise UsageError(
                "max_tokens and sequences_at_once must be at least 1, kept_mib and temperature at least 0; they are "
                f"{max_tokens}, {sequences_at_once}, {kept_mib} and {temperature:g}"
            )
        own: Any = getattr(model.generation_config, "eos_token_id", None)
        self._stop = frozenset((*stop_token_ids, *([own] if isinstance(own, int) else own or ())))
        if not self._stop:
            raise UsageError("the model has no eos_token_id: pass stop_token_ids, such as the codec's stop")
        self.version = 0
        """Version of the weights, which each :meth:`changing_weights` raises; every sample has its own."""
        self._max_tokens, self._temperature, self._at_once = max_tokens, temperature, sequences_at_once
        self._window: int | None = getattr(model.config, "max_position_embeddings", None)
        # Only stop strings are read as text, and there are none here.
        self._generation = Generation(model, lambda _: "", kept_bytes(model.device, kept_mib << 20))
        self._seeds = itertools.count(seed)
        self._waiting: list[_Waiting] = []
        self._lock = asyncio.Lock()

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that went through the model so far, since they were not kept of an earlier turn."""
        return self._generation.computed_tokens

    async def context_tokens(self) -> int | None:
        """Return the model's context window in tokens; None if its configuration has none."""
        return self._window

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample one message. A cancelled call returns once the batch that has its prompt is sampled.

        Raises:
            ContextOverflowError: The prompt and a longest answer do not fit the model's context window.
            SamplerError: The model failed, as it does without memory.
        """
        if self._window is not None and len(prompt) + self._max_tokens > self._window:
            raise ContextOverflowError(
                f"a prompt of {len(prompt)} tokens and an answer of {self._max_tokens} exceed the model's context of "
                f"{self._window}"
            )
        request = Request(
            list(prompt),
            self._max_tokens,
            temperature=self._temperature,
            seed=next(self._seeds),
            stop_tokens=self._stop,
        )
        waiting = _Waiting(request, asyncio.get_running_loop().time())
        self._waiting.append(waiting)
        try:
            while waiting.answer is None:
                async with self._lock:
                    if waiting.answer is None:
                        await shielded(self._answer_some())
        finally:
            if waiting in self._waiting:  # cancelled before its batch began
                self._waiting.remove(waiting)
        if isinstance(waiting.answer, SamplerError):
            raise waiting.answer
        return waiting.answer

    @contextlib.asynccontextmanager
    async def changing_weights(self) -> AsyncGenerator[None]:
        """Sample nothing during the block, in which the model's weights may change, and forget what they computed."""
        async with self._lock:
            try:
                yield
            finally:
                self._generation.forget(self.version)
                self.version += 1

    async def _answer_some(self) -> None:
        some, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
        began, version = asyncio.get_running_loop().time(), self.version
        try:
            sampled = await asyncio.to_thread(self._generation.sample, [one.request for one in some], version)
        except Exception as exc:  # the boundary to the model
            for one in some:
                one.answer = SamplerError(f"the model failed: {exc}")
                one.answer.__cause__ = exc
            return
        for one, message in zip(some, sampled, strict=True):
            reason = "stop" if message.is_stopped else "length"
            one.answer = Sample(message.tokens, message.logprobs, reason, version, began - one.asked_at)
