"""Muon in float32, for a tiny policy's matrices on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are made orthogonal (Muon, kellerjordan.github.io/posts/muon).

    As ``torch.optim.Muon`` with ``nesterov=True``, which multiplies in bfloat16: a processor without instructions for
    that takes eight times as long for a step.

    Args:
        params: Matrices of float32.
        lr: Learning rate, times ``sqrt(rows / columns)`` for a matrix with more rows than columns.
        weight_decay: Share by which a step of rate 1 makes the weights smaller.
        momentum: Share of the earlier gradients' mean in the new one.
    """

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closure
        """Update each matrix that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if "mean" not in self.state[weight]:
                    self.state[weight]["mean"] = torch.zeros_like(weight)
                mean = self.state[weight]["mean"]
                mean.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonal(weight.grad.lerp(mean, group["momentum"]))
                rows, columns = weight.shape
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with about the same singular vectors, whose singular values are all near 1 (Newton-Schulz)."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    a, b, c = _COEFFICIENTS
    found = matrix / matrix.norm().clamp(min=1e-7)  # no singular value is above 1
    for _ in range(_ITERATIONS):
        gram = found @ found.T
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found
