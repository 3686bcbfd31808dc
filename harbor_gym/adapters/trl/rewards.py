"""The verifier's rewards as a TRL reward function, for tool harnesses."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl.harness import ToolHarness
from harbor_gym.errors import HarborGymError
from harbor_gym.types import EndReason

LOST_METRIC = "harbor/lost"
"""Name of the trainer's metric for the share of a batch's episodes without a verdict, in [0, 1]."""


def verified_reward(
    completions: Sequence[Any],
    environments: Sequence[Any],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Verify every episode of a batch concurrently, and return the rewards.

    Args:
        completions: The messages of each rollout. If the last one calls a tool or is a tool's output, a limit of the
            trainer cut the rollout and the episode is truncated; else it ends as ``no_tool_call``.
        environments: The batch's environments.
        log_metric: Called with ``harbor/lost``.
        columns: The dataset's columns, which are ignored.

    Returns:
        A reward for each rollout. It is None after a failure of the infrastructure and for environments of other
        classes; TRL leaves None out of the group's baseline and of training.

    Raises:
        HarborGymError: A task or the configuration is wrong, which no retry can repair.
    """
    harnesses = {number: env for number, env in enumerate(environments) if isinstance(env, ToolHarness)}
    reasons = {number: _end_reason(completions[number]) for number in harnesses}
    rewards = get_portal().call(_finish_all, harnesses, reasons)
    for harness in harnesses.values():
        raise_if_not_lost(harness._error)  # pyright: ignore[reportPrivateUsage]  # public methods would be tools
    if log_metric is not None and harnesses:
        log_metric(LOST_METRIC, sum(rewards[number] is None for number in harnesses) / len(harnesses))
    return [rewards.get(number) for number in range(len(environments))]


def raise_if_not_lost(error: Exception | None) -> None:
    """Raise the error of an episode without a reward, unless it is a failure of the infrastructure."""
    if error is not None and not (isinstance(error, HarborGymError) and error.is_infrastructure):
        raise error


async def _finish_all(
    harnesses: Mapping[int, ToolHarness], reasons: Mapping[int, EndReason]
) -> dict[int, float | None]:
    async with asyncio.TaskGroup() as group:
        tasks = {
            number: group.create_task(harness._finish(reasons[number]))  # pyright: ignore[reportPrivateUsage]  # likewise
            for number, harness in harnesses.items()
        }
    return {number: task.result() for number, task in tasks.items()}


def _end_reason(completion: Any) -> EndReason:
    last = completion[-1] if isinstance(completion, Sequence) and completion else None
    match last:
        case {"role": "tool"}:
            return EndReason.CONTEXT_OVERFLOW
        case {"tool_calls": calls} if calls:
            return EndReason.MAX_TURNS
        case _:
            return EndReason.NO_TOOL_CALL
