"""Play an evaluation's first episode alone, to find out whether an endpoint answers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from harbor_gym.config import EpisodeConfig
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodePlayer, EpisodeResult
from harbor_gym.samplers.engine_client import EngineClient

SLOW_SEC = 10.0
"""A request that waits this long is reported, and again each time its wait has doubled."""

_LOOK_SEC = 0.5


@dataclass
class FirstAlone:
    """Hold the other episodes back until the endpoint has answered the first one, is slow, or the first one is over.

    A refused key or an unknown model then ends the evaluation before it has started a second sandbox. After an answer
    that a further request would get again, the next attempt is alone as well: a second such answer ends it.
    """

    player: EpisodePlayer
    """Plays the episodes."""

    endpoint: EngineClient
    """The endpoint that the player calls."""

    _is_begun: bool = False
    _others_may_begin: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def max_retries(self) -> int:
        """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""
        return self.player.max_retries

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`EpisodePlayer.attempt`."""
        while self._is_begun and not self._others_may_begin.is_set():
            await self._others_may_begin.wait()
        if self._others_may_begin.is_set():
            return await self.player.attempt(config, number)
        self._is_begun = True
        played = await self.player.attempt(config, number)
        self._others_may_begin.set()
        if self.endpoint.history.unusable and not self.endpoint.has_answered:
            self._others_may_begin.clear()  # all who wait look again, and the first of them is alone
            self._is_begun = False
        return played

    @contextlib.asynccontextmanager
    async def watching(self, show: Callable[[str], object]) -> AsyncGenerator[None]:
        """Release the other episodes when the endpoint answers or is slow, and report slow answers.

        Args:
            show: Called with one line per slow answer.
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
