"""Make the scalar reward that trains a policy from a verifier's rewards."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from harbor_gym._runtime.imports import import_named
from harbor_gym.errors import UsageError, VerifierError

RewardFunction = Callable[[Mapping[str, float]], float]
"""Makes the scalar of a verifier's rewards, given by name."""

_AGGREGATES: dict[str, Callable[[Iterable[float]], float]] = {
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "sum": math.fsum,
}


def scalar_reward(rewards: Mapping[str, float], key: str | None = None) -> float:
    """Return the reward called ``key``; without a key, the reward called ``reward`` or the only one.

    Args:
        rewards: The verifier's rewards by name.
        key: The name of the scalar.

    Raises:
        VerifierError: No reward has that name, or there are several and none is called ``reward``.
    """
    name = key or ("reward" if "reward" in rewards or len(rewards) != 1 else next(iter(rewards)))
    if name not in rewards:
        known = ", ".join(sorted(rewards)) or "none"
        raise VerifierError(
            f"the verifier wrote no reward named {name!r} (it wrote: {known}); "
            "name the one to use (reward_key) or a function of all (reward_function)"
        )
    return float(rewards[name])


def reward_function(key: str | None = None, function: str | None = None) -> RewardFunction:
    """Return the function that makes the scalar: by a key's name, or by a function of all keys.

    Args:
        key: As for :func:`scalar_reward`.
        function: ``mean``, ``min``, ``max`` or ``sum`` of all keys, or ``module.path:function`` of your own, which
            takes the rewards by name and returns a finite number.

    Raises:
        UsageError: Both are given, or there is no such function.
    """
    if function is None:
        return lambda rewards: scalar_reward(rewards, key)
    if key is not None:
        raise UsageError(f"reward_key {key!r} and reward_function {function!r} exclude each other: give one")
    return _checked(_named(function), function)


def _named(name: str) -> RewardFunction:
    if name in _AGGREGATES:
        return lambda rewards: _AGGREGATES[name](rewards.values())
    if ":" not in name:
        known = ", ".join(_AGGREGATES)
        raise UsageError(f"reward_function {name!r} is no function; known: {known}, or module.path:function")
    # The type is the user's promise; the result is checked.
    return cast(RewardFunction, import_named(name, what="reward_function"))


def _checked(function: RewardFunction, name: str) -> RewardFunction:
    def scalar(rewards: Mapping[str, float]) -> float:
        if not rewards:
            raise VerifierError(f"the verifier wrote no reward at all, and reward_function {name!r} needs one")
        value = float(function(rewards))
        if not math.isfinite(value):
            raise UsageError(f"reward_function {name!r} returned {value} for {dict(rewards)}")
        return value

    return scalar
