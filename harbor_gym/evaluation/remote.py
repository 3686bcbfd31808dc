"""Play the episodes of an evaluation in other processes, or on other machines."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from harbor_gym.config import DEFAULT_MAX_RETRIES, EpisodeConfig, aliases
from harbor_gym.errors import HarborGymError, SandboxError
from harbor_gym.evaluation.episodes import EpisodePlayer, EpisodeResult, result_of
from harbor_gym.samplers.attempts import AttemptError, History
from harbor_gym.types import Rollout

type OpenPlayer = Callable[[], AbstractAsyncContextManager[EpisodePlayer]]
"""Opens a player in the worker. It must pickle: a function of a module, or a partial of one."""


@aliases.accepting(aliases.PLAYER)
@dataclass(frozen=True)
class RemotePlayer:
    """Plays each attempt as one call of an executor, such as :func:`harbor_gym.cluster.open_executor`'s."""

    executor: Executor
    """Plays as many attempts at once as it has workers."""

    open_player: OpenPlayer

    max_retries: int = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""

    _history: History = field(default_factory=History)
    """What is known of the player's engine, of which each attempt's worker has a client of its own."""

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`EpisodePlayer.attempt`. A lost worker is an infrastructure error as well."""
        future = self.executor.submit(_attempt, self.open_player, config, number)
        try:
            result, error = await asyncio.wrap_future(future)
        except SandboxError as error:
            return result_of(config.task_dir.resolve().name, number, Rollout.lost(error), 0.0), error
        self._history.has_answered |= result.turns > 0
        if isinstance(error, AttemptError):
            self._history.note(error)
        return result, error


def _attempt(
    open_player: OpenPlayer, config: EpisodeConfig, number: int
) -> tuple[EpisodeResult, HarborGymError | None]:
    async def play() -> tuple[EpisodeResult, HarborGymError | None]:
        async with open_player() as player:
            return await player.attempt(config, number)

    return asyncio.run(play())
