"""Hooks into a training's episodes: a custom environment, and a reward over the whole trajectory."""

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

from harbor_gym._runtime.imports import import_named
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import UsageError
from harbor_gym.types import Transcript
from harbor_gym.wrappers import MakeEnv

TrajectoryReward = Callable[[Transcript], float | Awaitable[float]]
"""Returns a number to add to the reward of a verified episode; may be asynchronous. ``transcript.turns[-1].info`` has
the end reason and the verifier's rewards. It is not called for an episode that the infrastructure lost."""


def find_make_env(hook: MakeEnv | str | None) -> MakeEnv:
    """Return the function that makes an episode's environment.

    Args:
        hook: The function, its name as ``module.path:name``, or None for ``AsyncTerminalGymEnv``.

    Raises:
        UsageError: The name can't be imported, or is not callable.
    """
    if hook is None:
        return AsyncTerminalGymEnv
    return cast(MakeEnv, import_named(hook, what="make_env")) if isinstance(hook, str) else hook


def find_trajectory_reward(hook: TrajectoryReward | str | None) -> TrajectoryReward | None:
    """Return the function for a reward over the trajectory; None if ``hook`` is None.

    Args:
        hook: The function, or its name as ``module.path:name``.

    Raises:
        UsageError: The name can't be imported, or is not callable.
    """
    return cast(TrajectoryReward, import_named(hook, what="trajectory_reward")) if isinstance(hook, str) else hook


async def trajectory_reward(hook: TrajectoryReward, transcript: Transcript) -> float:
    """Return the number that the hook adds to an episode's reward.

    Raises:
        UsageError: The hook did not return a finite number.
    """
    found: Any = hook(transcript)
    value: Any = await found if inspect.isawaitable(found) else found
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"trajectory_reward returned {value!r}; expected a finite number")
    return float(value)
