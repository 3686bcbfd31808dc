"""Make the scalar reward that trains a policy from a verifier's rewards."""

import inspect
import math
import statistics
from collections.abc import Callable, Iterable, Mapping

from harbor_gym._runtime.imports import import_named, name_of
from harbor_gym.config import RewardFunction as RewardFunction
from harbor_gym.errors import UsageError, VerifierError

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


def reward_function(key: str | None = None, function: str | RewardFunction | None = None) -> RewardFunction:
    """Return the function that makes the scalar: by a key's name, or by a function of all keys.

    Args:
        key: As for :func:`scalar_reward`.
        function: ``mean``, ``min``, ``max`` or ``sum`` of all keys, or a function of your own or its
            ``module.path:function``, which takes the rewards by name and returns a finite number.

    Raises:
        UsageError: Both are given, there is no such function, or it can't be called with the rewards.
    """
    if function is None:
        return lambda rewards: scalar_reward(rewards, key)
    name = function if isinstance(function, str) else name_of(function)
    if key is not None:
        raise UsageError(f"reward_key {key!r} and reward_function {name!r} exclude each other: give one")
    return _checked(_named(function) if isinstance(function, str) else function, name)


def _named(name: str) -> RewardFunction:
    if name in _AGGREGATES:
        return lambda rewards: _AGGREGATES[name](rewards.values())
    if ":" not in name:
        known = ", ".join(_AGGREGATES)
        raise UsageError(f"reward_function {name!r} is no function; known: {known}, or module.path:function")
    return import_named(name, what="reward_function")


def _checked(function: RewardFunction, name: str) -> RewardFunction:
    if not _takes_rewards(function):
        raise UsageError(
            f"reward_function {name!r} can't be used: it has to be a function, not async, of one argument, the "
            "verifier's rewards by name, that returns a finite number"
        )

    def scalar(rewards: Mapping[str, float]) -> float:
        if not rewards:
            raise VerifierError(f"the verifier wrote no reward at all, and reward_function {name!r} needs one")
        made = function(rewards)
        try:
            value = float(made)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"reward_function {name!r} returned {made!r:.100} for {dict(rewards)}: no finite number")
        return value

    return scalar


def _takes_rewards(function: RewardFunction) -> bool:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        pass
    return not inspect.iscoroutinefunction(function)
