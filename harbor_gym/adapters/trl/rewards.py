"""The verifier's verdicts as a reward function of TRL's, for tool harnesses."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl.harness import ToolHarness
from harbor_gym.errors import HarborGymError
from harbor_gym.types import EndReason

LOST_METRIC = "harbor/lost"
"""Share of a batch's episodes without a verdict, in [0, 1], among the trainer's metrics."""


def verified_reward(
    completions: Sequence[Any],
    environments: Sequence[Any],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Verify every episode of a batch, side by side, and return the rewards.

    Args:
        completions: The messages of each rollout. A last message that still calls a tool, or a tool's output, means
            that a limit of the trainer cut the rollout: the episode is truncated then, else it ends as
            ``no_tool_call``.
        environments: The batch's environments.
        log_metric: Takes ``harbor/lost``.
        columns: The dataset's columns, which are ignored.

    Returns:
        A reward for each rollout; None, which TRL leaves out of the group's baseline and of training, after a failure
        of the infrastructure and for environments of other kinds.

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
    """Raise what ended an episode without a reward, unless the infrastructure failed: no retry can repair it."""
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
