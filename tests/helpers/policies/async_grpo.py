"""AsyncGRPO on a CPU: an engine that samples with a tiny model, and what TRL needs a GPU for."""

import asyncio
import itertools
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harbor_gym import Sample
from harbor_gym._runtime.portal import get_portal
from tests.helpers.policies.completions_server import completions_server


class TinyEngine:
    """Samples at temperature 1 with a model, and takes new weights: TRL's weight transfer, too."""

    def __init__(self, model: Any, stop: Sequence[int], max_tokens: int) -> None:
        self._model, self._stop, self._max_tokens = model, set(stop), max_tokens
        self._lock = threading.Lock()
        self.updates = 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        return await asyncio.to_thread(self._sample, list(prompt))

    def _sample(self, prompt: list[int]) -> Sample:
        import torch

        tokens, logprobs = list[int](), list[float]()
        with self._lock, torch.no_grad():
            cache, following = None, torch.tensor([prompt])
            while len(tokens) < self._max_tokens:
                out = self._model(input_ids=following, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                distribution = out.logits[0, -1].float().log_softmax(-1)
                tokens.append(int(torch.multinomial(distribution.exp(), 1)))
                logprobs.append(float(distribution[tokens[-1]]))
                if tokens[-1] in self._stop:
                    return Sample(tokens, logprobs, "stop")
                following = torch.tensor([tokens[-1:]])
        return Sample(tokens, logprobs, "length")

    # -- TRL's WeightTransferProtocol ------------------------------------------------------------------------------

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        state = {name: tensor.detach().clone() for name, tensor in iterator}
        with self._lock:
            self._model.load_state_dict(state, strict=False)
            self.updates += 1

    def resume(self) -> None:
        pass

    def destroy(self) -> None:
        pass


@contextmanager
def served_engine(engine: TinyEngine) -> Generator[str]:
    """Serve an engine on the portal's loop; yield its address."""
    context = completions_server(engine)
    url = get_portal().call(context.__aenter__)
    try:
        yield url
    finally:
        get_portal().call(context.__aexit__, None, None, None)


def without_gpu(patch: pytest.MonkeyPatch) -> None:
    """Stand in for the attention kernel, the FLOP table and the vLLM package, none of which a CPU has."""
    import trl.experimental.async_grpo.async_grpo_trainer as trainer
    import trl.experimental.async_grpo.async_rollout_worker as worker
    import trl.experimental.async_grpo.packing as packing

    patch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=_varlen_attention))
    patch.setattr(trainer, "get_peak_flops_per_device", lambda *_, **__: None)
    patch.setattr(worker, "is_vllm_available", lambda: True)


def _varlen_attention(
    query: Any, key: Any, value: Any, query_ends: Any, key_ends: Any, *_: Any, softmax_scale: Any = None, **__: Any
) -> Any:
    """Attend causally in each of several sequences that lie one after the other."""
    import torch

    parts: list[Any] = []
    ends = list(zip(query_ends.tolist(), key_ends.tolist(), strict=True))
    for (first, key_first), (last, key_last) in itertools.pairwise(ends):
        q, k, v = query[first:last], key[key_first:key_last], value[key_first:key_last]
        heads = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (softmax_scale or q.shape[-1] ** -0.5)
        is_later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + scores.shape[2] - scores.shape[1])
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(parts)
