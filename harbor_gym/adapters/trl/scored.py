"""Tool harnesses that report their own reward, as ``AsyncGRPOTrainer``'s worker process requires."""

import functools
import multiprocessing
from collections.abc import Callable

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl.harness import HarnessSettings, ToolHarness
from harbor_gym.adapters.trl.rewards import raise_if_not_lost
from harbor_gym.adapters.trl.signals import exit_cleanly_on_sigterm
from harbor_gym.types import EndReason


class ScoredHarness(ToolHarness):
    """Adds TRL's ``get_reward`` to a harness, see :func:`make_scored_factory`."""

    async def get_reward(self) -> float | None:
        """Verify the episode and return its reward; None if there is no verdict.

        TRL does not report why the tool loop ended. Unless one of the episode's own budgets ended it, it ends as
        ``no_tool_call``, even after ``max_completion_length`` or ``max_tool_calling_iterations``.

        Raises:
            HarborGymError: A task or the configuration is wrong, which no retry can repair.
        """
        reward = await get_portal().run(self._finish, EndReason.NO_TOOL_CALL)
        raise_if_not_lost(self._error)
        return reward


def make_scored_factory(harness: type[ToolHarness], settings: HarnessSettings) -> Callable[[], ToolHarness]:
    """Return a picklable factory of environments with ``get_reward``."""
    return functools.partial(_make_scored, harness, settings)


def _make_scored(harness: type[ToolHarness], settings: HarnessSettings) -> ToolHarness:
    if multiprocessing.parent_process() is not None:  # the worker's: its trainer may end it by SIGTERM
        exit_cleanly_on_sigterm()
    return _scored_class(harness)(settings)


@functools.cache
def _scored_class(harness: type[ToolHarness]) -> type[ToolHarness]:
    # One class for each harness: TRL reports a column of rewards by class.
    return type(harness.__name__, (ScoredHarness, harness), {"__doc__": harness.__doc__})
