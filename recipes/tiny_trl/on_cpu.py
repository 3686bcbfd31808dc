"""``AsyncGRPOTrainer`` on a CPU: replacements for its GPU parts, and weight transfer to an engine of this process."""

import contextlib
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from harbor_gym.errors import UsageError

from .engine import CompletionsEngine


class EngineWeights:
    """``weight_transfer`` of an ``AsyncGRPOTrainer``: its weights go into an engine of this process.

    Args:
        engine: The engine, open.
    """

    def __init__(self, engine: CompletionsEngine) -> None:
        self._engine = engine

    def init_weight_transfer(self) -> None:
        """Do nothing: there is no connection."""

    def pause(self) -> None:
        """Do nothing: the engine loads between batches."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy the trainer's weights into the engine."""
        self._engine.load(iterator)

    def resume(self) -> None:
        """Do nothing, as for :meth:`pause`."""

    def destroy(self) -> None:
        """Do nothing, as for :meth:`init_weight_transfer`."""


def _no_peak_flops(accelerator: object, dtype: str) -> None:
    return None


@contextlib.contextmanager
def async_grpo_on_cpu() -> Generator[None]:
    """Replace two functions of TRL 1.16 that need a GPU during the block: the attention kernel and the peak FLOPS.

    Raises:
        UsageError: The installed TRL no longer has these functions.
    """
    from harbor_gym.adapters.trl.layout import async_grpo_trainer, packing

    replaced: list[tuple[Any, str, Any]] = [
        (packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attend)),
        (async_grpo_trainer, "get_peak_flops_per_device", _no_peak_flops),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, stand_in in replaced:
            if not hasattr(module, name):
                raise UsageError(
                    f"{module.__name__} has no {name}: this TRL's AsyncGRPOTrainer can't run on a CPU here"
                )
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, stand_in)
        yield


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    max_queries: int,
    max_keys: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Return causal attention of packed segments, as ``flash_attn_varlen_func`` computes it on a GPU.

    Source: the interface of FlashAttention's variable-length function. A segment's queries are at the last positions of
    its keys.

    Args:
        query: (queries, heads, size).
        key: (keys, key heads, size); heads are a multiple of key heads.
        value: As ``key``.
        query_ends: (segments + 1), the offsets of the segments' queries.
        key_ends: (segments + 1), the offsets of the segments' keys.
        max_queries: Most queries of a segment; not used here.
        max_keys: Most keys of a segment; not used here.
        softmax_scale: Factor on the scores; None is ``size ** -0.5``.
        causal: Must be True.
        window_size: Must be unlimited.

    Returns:
        (queries, heads, size).

    Raises:
        UsageError: The attention is not causal, or has a window.
    """
    if not causal or window_size != (-1, -1):
        raise UsageError("attention on the CPU is causal and without a window")
    parts: list[torch.Tensor] = []
    ends = zip(query_ends.tolist(), query_ends.tolist()[1:], key_ends.tolist(), key_ends.tolist()[1:], strict=False)
    for first_query, last_query, first_key, last_key in ends:
        queries, keys = last_query - first_query, last_key - first_key
        allowed = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        part = torch.nn.functional.scaled_dot_product_attention(
            query[first_query:last_query].transpose(0, 1),
            key[first_key:last_key].transpose(0, 1),
            value[first_key:last_key].transpose(0, 1),
            attn_mask=allowed,
            scale=softmax_scale,
            enable_gqa=True,
        )
        parts.append(part.transpose(0, 1))
    return torch.cat(parts)
