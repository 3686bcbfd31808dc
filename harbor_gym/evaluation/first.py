"""The first episode against an untried endpoint, which finds out whether the endpoint answers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodePlayer, EpisodeResult
from harbor_gym.samplers.engine_client import EngineClient

SLOW_SEC = 10.0
"""A request that waits longer is reported, and again each time it has waited twice as long."""

_LOOK_SEC = 0.5


@dataclass
class FirstAlone:
    """Play one episode alone until the endpoint has answered it once, is slow, or the episode is over.

    A refused key or an unknown model then ends the evaluation before it has started a second sandbox.
    """

    player: EpisodePlayer
    """What plays."""

    endpoint: EngineClient
    """What it asks."""

    _is_begun: bool = False
    _others_may_begin: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def retries(self) -> int:
        """Fresh attempts at an episode that an infrastructure error ended."""
        return self.player.retries

    async def attempt(self, config: TerminalEnvConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """Play an episode once, as :class:`EpisodePlayer` does."""
        if self._is_begun:
            await self._others_may_begin.wait()
            return await self.player.attempt(config, number)
        self._is_begun = True
        played = await self.player.attempt(config, number)
        self._others_may_begin.set()
        return played

    @contextlib.asynccontextmanager
    async def watching(self, show: Callable[[str], object]) -> AsyncGenerator[None]:
        """Let the other episodes begin during the block, and show a line about each slow answer.

        Args:
            show: Called with the line.
        """
        watch = asyncio.create_task(self._watch(show))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    async def _watch(self, show: Callable[[str], object]) -> None:
        due = SLOW_SEC
        while True:
            waited = self.endpoint.waited_sec
            if waited >= due:
                show(_slowness(self.endpoint, waited))
                due *= 2
            elif waited < SLOW_SEC:
                due = SLOW_SEC
            if due > SLOW_SEC or self.endpoint.has_answered:
                self._others_may_begin.set()
            await asyncio.sleep(_LOOK_SEC)


def _slowness(endpoint: EngineClient, waited: float) -> str:
    failure = f" (last attempt: {endpoint.last_failure})" if endpoint.last_failure else ""
    return f"waiting for an answer of {endpoint.url} for {waited:.0f} s{failure}"
