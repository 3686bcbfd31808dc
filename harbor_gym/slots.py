"""Slots that run one episode after another, for frameworks that keep one environment object."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.outcomes import RetryBudget
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.types import ResetInfo

type Preparation = Callable[[AsyncTerminalGymEnv], Awaitable[None]]
"""Prepares an episode's sandbox for a harness's tools, before the policy acts."""


class SlotOwner:
    """The slots and warm pools of one user, such as a server. Its methods run on the portal's loop.

    Args:
        closed: The message of the ``UsageError`` that a start raises after :meth:`close`.
    """

    def __init__(self, closed: str) -> None:
        self.is_closed = False
        self._closed = closed
        self._slots: weakref.WeakSet[EpisodeSlot] = weakref.WeakSet()
        self._pools: weakref.WeakSet[WarmPool] = weakref.WeakSet()

    def add(self, slot: "EpisodeSlot") -> None:
        """Register a slot, which :meth:`close` then closes."""
        self._slots.add(slot)

    def make_env(self, config: TerminalEnvConfig, *, pool_size: int | None) -> AsyncTerminalGymEnv:
        """Return an environment, with a warm pool that :meth:`close` closes.

        Args:
            config: The episode's configuration.
            pool_size: Sandboxes that the task's pool keeps ready; None uses no pool.

        Raises:
            UsageError: The owner is closed.
        """
        self.require_open()
        if pool_size is None:
            return AsyncTerminalGymEnv(config)
        pool = shared_pool(config, size=pool_size)
        self._pools.add(pool)
        return AsyncTerminalGymEnv(config, pool=pool)

    def require_open(self) -> None:
        """Raise ``UsageError`` after :meth:`close`."""
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> UsageError:
        """Return the error for a start after :meth:`close`."""
        return UsageError(self._closed)

    async def close(self) -> None:
        """Stop every sandbox and warm pool, side by side, and refuse further episodes. Idempotent."""
        self.is_closed = True
        async with asyncio.TaskGroup() as group:
            for item in (*self._slots, *self._pools):
                group.create_task(item.close())


class EpisodeSlot:
    """Runs one episode after another, each in a fresh sandbox. Its methods run on the portal's loop.

    Args:
        owner: The owner, which closes this slot.
    """

    def __init__(self, owner: SlotOwner) -> None:
        self._owner = owner
        self._env: AsyncTerminalGymEnv | None = None
        self._is_closed = False
        owner.add(self)

    @property
    def env(self) -> AsyncTerminalGymEnv:
        """The running episode's environment.

        Raises:
            UsageError: No episode is running.
        """
        if self._env is None:
            raise UsageError("there is no running episode: call reset first")
        return self._env

    async def start(
        self,
        config: TerminalEnvConfig,
        *,
        max_retries: int,
        pool_size: int | None = None,
        prepare: Preparation | None = None,
    ) -> tuple[str, ResetInfo]:
        """Close the last episode and start a new one; a failed start is retried in a fresh sandbox.

        Args:
            config: The episode's configuration.
            max_retries: Starts that may follow a failed one.
            pool_size: See :meth:`SlotOwner.make_env`.
            prepare: Prepares the sandbox after each start.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.reset`, or raised by ``prepare``.
            UsageError: The slot or its owner is closed.
        """
        await self._release()

        async def attempt() -> tuple[str, ResetInfo]:
            if self._is_closed:
                raise self._owner.closed_error()
            self._env = self._owner.make_env(config, pool_size=pool_size)
            try:
                started = await self._env.reset()
                if prepare is not None:
                    await prepare(self._env)
            except HarborGymError:
                await self._release()
                raise
            return started

        return await RetryBudget(max_retries).run(attempt)

    async def close(self) -> None:
        """Stop the sandbox and refuse further episodes. Idempotent; may be called while another call runs."""
        self._is_closed = True
        await self._release()

    async def _release(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await env.close()
