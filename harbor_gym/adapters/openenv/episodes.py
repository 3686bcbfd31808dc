"""Plays a session's episodes one after the other on the portal's event loop."""

import asyncio
from collections.abc import Awaitable, Callable

from harbor_gym.adapters.openenv.config import ServerConfig
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.slots import EpisodeSlot, SlotOwner
from harbor_gym.types import ResetInfo, StepResult


class ServedSlot(EpisodeSlot):
    """Runs the episodes of one session. If a call takes longer than ``call_timeout_sec``, the episode is lost.

    Args:
        settings: The server's configuration.
        owner: The owner of all of the server's slots.
    """

    def __init__(self, settings: ServerConfig, owner: SlotOwner) -> None:
        super().__init__(owner)
        self._settings = settings

    async def begin(self, config: TerminalEnvConfig) -> tuple[str, ResetInfo]:
        """Start an episode, as :meth:`start` does.

        Raises:
            HarborGymError: As :meth:`start`; ``SandboxTimeoutError`` after ``call_timeout_sec``.
        """
        settings = self._settings
        start = self.start(config, max_retries=settings.max_retries, pool_size=settings.pool_size)
        return await self._in_time(start, "reset")

    async def act(self, step: Callable[[AsyncTerminalGymEnv], Awaitable[StepResult]]) -> StepResult:
        """Do one step.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.step`; ``SandboxTimeoutError`` after ``call_timeout_sec``.
            UsageError: There is no running episode.
        """
        return await self._in_time(step(self.env), "a step")

    async def _in_time[T](self, work: Awaitable[T], what: str) -> T:
        longest_sec = self._settings.call_timeout_sec
        deadline = asyncio.timeout(longest_sec)  # a cancelled call stops its sandbox
        try:
            async with deadline:
                return await work
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise SandboxTimeoutError(f"{what} took longer than {longest_sec:g} s (call_timeout_sec)") from exc


def served_episodes() -> SlotOwner:
    """Return an owner of a server's slots."""
    return SlotOwner("the session is closed: open another one")
