"""The losses of the Tinker API that SkyRL's server knows, for one sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

type _Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, float], torch.Tensor]

_LOWEST, _HIGHEST = 0.8, 1.2
"""Where ``ppo`` and ``cispo`` clip the ratio of probabilities, unless a request says otherwise."""


def token_losses(
    name: str,
    logprobs: torch.Tensor,
    weights: torch.Tensor,
    sampled: torch.Tensor,
    advantages: torch.Tensor,
    settings: Mapping[str, float] | None,
) -> torch.Tensor:
    """Return the loss of each token; where its weight is 0 it is 0.

    Args:
        name: A name of :data:`LOSSES`.
        logprobs: The tokens' log-probabilities, with their gradient.
        weights: The tokens' weights.
        sampled: Their log-probabilities when they were sampled; ``cross_entropy`` takes none.
        advantages: Their advantages; likewise.
        settings: ``clip_low_threshold`` and ``clip_high_threshold``.
    """
    clips = settings or {}
    low, high = clips.get("clip_low_threshold", _LOWEST), clips.get("clip_high_threshold", _HIGHEST)
    losses = LOSSES[name](logprobs, sampled, advantages, low, high)
    return torch.where(weights != 0, weights * losses, torch.zeros_like(losses))


def _ppo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


LOSSES: dict[str, _Loss] = {
    "cross_entropy": lambda new, _old, _advantages, _low, _high: -new,
    "importance_sampling": lambda new, old, advantages, _low, _high: -(new - old).exp() * advantages,
    "ppo": _ppo,
    "cispo": lambda new, old, advantages, low, high: -(new - old).exp().clamp(low, high).detach() * new * advantages,
}
"""The losses by name: of new and sampled log-probabilities, advantages and the two clips."""
