"""Where a model is computed: on the CPU, or on a GPU by CUDA."""

from __future__ import annotations

import torch

_KEPT_SHARE = 8
"""The part of a GPU's free memory, as its divisor, that may hold what was computed of earlier turns."""


def device_of(name: str | None) -> torch.device:
    """Return a device.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:1``; None is CUDA where torch sees a GPU, and else the CPU.

    Raises:
        ValueError: There is no such device.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, number = (name or ("cuda" if seen else "cpu")).partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise ValueError(f"a device is cpu, cuda or cuda:1, not {name}")
    if kind == "cpu":
        return torch.device("cpu")
    if int(number or 0) >= seen:
        raise ValueError(f"torch {torch.__version__} sees {seen} GPUs, and the device is to be {name}")
    return torch.device("cuda", int(number or 0))


def kept_bytes(device: torch.device, most: int) -> int:
    """Return how much of a device's memory may hold keys and values between turns: a GPU has less than its host."""
    if device.type == "cpu":
        return most
    free, _ = torch.cuda.mem_get_info(device)
    return min(most, free // _KEPT_SHARE)
