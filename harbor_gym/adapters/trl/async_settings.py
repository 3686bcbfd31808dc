"""The rollout worker's settings, read from an ``AsyncGRPOConfig``."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from harbor_gym.samplers import CompletionsSampler
from harbor_gym.types import Sampler

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig  # seconds to import


def engine_sampler(
    args: "AsyncGRPOConfig", model: str, stop_token_ids: Sequence[int]
) -> Callable[[], AbstractAsyncContextManager[Sampler]]:
    """Return a picklable function that opens a sampler over the trainer's vLLM server.

    Args:
        args: The trainer's configuration: address, time limit and sampling.
        model: The policy's name on the server.
        stop_token_ids: Tokens that end a message.
    """
    sampling: dict[str, Any] = {
        "top_p": args.top_p,
        "top_k": args.top_k,
        "repetition_penalty": args.repetition_penalty,
        **({} if args.min_p is None else {"min_p": args.min_p}),
    }
    return functools.partial(
        CompletionsSampler,
        args.vllm_server_base_url,
        model,
        max_tokens=args.max_completion_length,
        temperature=args.temperature,
        stop_token_ids=tuple(stop_token_ids),
        timeout_sec=float(args.request_timeout),
        extra_body=sampling,
    )


def groups_at_once(args: "AsyncGRPOConfig") -> int:
    """Return the number of concurrent groups: ``max_inflight_tasks`` episodes, and at least one group."""
    inflight = args.max_inflight_tasks
    if inflight < 0:  # as the trainer fills it in
        inflight = max(args.max_staleness, 1) * _samples_per_step(args)
    return max(1, inflight // args.num_generations)


def queue_size(args: "AsyncGRPOConfig") -> int:
    """Return how many samples may wait: those that the trainer takes before they are stale, and at least one group."""
    size = max(args.max_staleness, 1) * _samples_per_step(args)
    if args.queue_maxsize > 0:
        size = min(size, args.queue_maxsize)
    return max(size, args.num_generations)


def _samples_per_step(args: "AsyncGRPOConfig") -> int:
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
