"""One served episode after another on the portal's loop, and what closes all of them."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import SandboxTimeoutError, UsageError
from harbor_gym.outcomes import RetryBudget
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.types import EpisodeInfo, StepResult

DEFAULT_CALL_TIMEOUT_SEC = 3600.0
"""Covers an image that is built at the first reset, and a verifier."""


@dataclass(frozen=True)
class EpisodeSettings:
    """How every episode of a server runs."""

    config: TerminalEnvConfig
    """The sandbox and the budgets. Its ``task_dir`` is replaced by the episode's."""

    call_timeout_sec: float = DEFAULT_CALL_TIMEOUT_SEC
    """Longest reset or step, in seconds; after it the sandbox is stopped and the episode is lost."""

    max_retries: int = 1
    """Starts that may follow one that failed, of each episode."""

    pool_size: int | None = None
    """Sandboxes that a warm pool keeps ready for each task; None starts one per episode."""


class Episodes:
    """What a server opened. Its methods are coroutines of the portal's loop."""

    def __init__(self) -> None:
        self.slots: weakref.WeakSet[EpisodeSlot] = weakref.WeakSet()
        self.pools: weakref.WeakSet[WarmPool] = weakref.WeakSet()
        self.is_closed = False

    async def close(self) -> None:
        """Stop every sandbox and warm pool, side by side, and refuse further episodes. Idempotent."""
        self.is_closed = True
        async with asyncio.TaskGroup() as group:
            for item in (*self.slots, *self.pools):
                group.create_task(item.close())


class EpisodeSlot:
    """Runs the episodes of one session. Its methods are coroutines of the portal's loop.

    Args:
        settings: How they run.
        episodes: Closes this one with the others.
    """

    def __init__(self, settings: EpisodeSettings, episodes: Episodes) -> None:
        self._settings, self._episodes = settings, episodes
        self._env: AsyncTerminalGymEnv | None = None
        self._is_closed = False
        episodes.slots.add(self)

    async def start(self, config: TerminalEnvConfig) -> tuple[str, EpisodeInfo]:
        """Close the last episode and start one, again while the start fails and retries last.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.reset`; ``SandboxTimeoutError`` after ``call_timeout_sec``.
            UsageError: The session or the server is closed.
        """
        await self._release()
        return await self._in_time(self._open(config), "reset")

    async def act(self, step: Callable[[AsyncTerminalGymEnv], Awaitable[StepResult]]) -> StepResult:
        """Do one step.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.step`; ``SandboxTimeoutError`` after ``call_timeout_sec``.
            UsageError: There is no running episode.
        """
        if self._env is None:
            raise UsageError("there is no running episode: call reset first")
        return await self._in_time(step(self._env), "a step")

    async def close(self) -> None:
        """Stop the sandbox and refuse further episodes. Idempotent, at any time, also while a call runs."""
        self._is_closed = True
        await self._release()

    async def _open(self, config: TerminalEnvConfig) -> tuple[str, EpisodeInfo]:
        async def attempt() -> tuple[str, EpisodeInfo]:
            if self._is_closed or self._episodes.is_closed:
                raise UsageError("the session is closed: open another one")
            self._env = AsyncTerminalGymEnv(config, pool=self._pool(config))
            return await self._env.reset()

        return await RetryBudget(self._settings.max_retries).run(attempt)

    def _pool(self, config: TerminalEnvConfig) -> WarmPool | None:
        if self._settings.pool_size is None:
            return None
        pool = shared_pool(config, size=self._settings.pool_size)
        self._episodes.pools.add(pool)
        return pool

    async def _in_time[T](self, work: Awaitable[T], what: str) -> T:
        longest_sec = self._settings.call_timeout_sec
        deadline = asyncio.timeout(longest_sec)  # what it cuts off stops its sandbox
        try:
            async with deadline:
                return await work
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise SandboxTimeoutError(f"{what} took longer than {longest_sec:g} s (call_timeout_sec)") from exc

    async def _release(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await env.close()
