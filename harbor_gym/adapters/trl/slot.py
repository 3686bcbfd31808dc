"""One trainer's slot on the portal's loop: one episode after another, each call behind the ones before it."""

import asyncio
import itertools
import logging
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.outcomes import RetryBudget, classify
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.types import Command, EndReason, StepResult

EPISODE_OVER = "[the episode is over: nothing was executed]"
"""What a tool returns after a budget of the episode ran out, or the shell session ended."""

TERMINAL_LOST = "[the terminal is gone: nothing was executed]"
"""What a tool returns after a failure of the infrastructure. The episode's reward is None."""

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    """What one spec opened in this process."""

    slots: weakref.WeakSet["EpisodeSlot"] = field(default_factory=lambda: weakref.WeakSet[EpisodeSlot]())
    pools: weakref.WeakSet[WarmPool] = field(default_factory=lambda: weakref.WeakSet[WarmPool]())
    is_closed: bool = False


_runs: defaultdict[str, _Run] = defaultdict(_Run)


class EpisodeSlot:
    """Runs a slot's episodes. Every method is a coroutine of the portal's loop.

    An exception never leaves :meth:`start` or :meth:`run`: nobody waits for the first, and TRL would show the second's
    to the policy as a tool's output. It is kept in :attr:`error` for the reward function.

    Args:
        run_id: The spec's, for :func:`close_run`.
    """

    def __init__(self, run_id: str) -> None:
        self.error: Exception | None = None
        """What ended the episode without a reward, or None."""

        self._run = _runs[run_id]
        self._run.slots.add(self)
        self._lock = asyncio.Lock()
        self._env: AsyncTerminalGymEnv | None = None
        self._reward = 0.0
        self._is_done = False
        self._is_closed = False

    async def start(self, config: TerminalEnvConfig, *, pool_size: int | None, max_retries: int) -> None:
        """Close the last episode and start one, again while the start fails and retries last."""
        async with self._lock:
            self.error, self._reward, self._is_done = None, 0.0, False
            try:
                await self._release()
                await self._open(config, pool_size, RetryBudget(max_retries))
            except Exception as exc:  # kept for the reward function: nobody waits for a start
                self._lose(exc)

    async def run(self, commands: Sequence[Command]) -> str:
        """Type commands and return what the terminal shows, or why nothing was executed."""
        async with self._lock:
            if self.error is not None:
                return TERMINAL_LOST
            if self._is_done:
                return EPISODE_OVER
            assert self._env is not None
            try:
                return self._take(await self._env.step(commands))
            except Exception as exc:  # kept for the reward function: TRL would show it to the policy
                self._lose(exc)
                return TERMINAL_LOST

    async def finish(self, reason: EndReason) -> float | None:
        """Have the episode verified if it is not, and return its reward; None where there is no verdict."""
        async with self._lock:
            if self.error is None and not self._is_done:
                assert self._env is not None
                end = self._env.truncate if reason.is_truncation else self._env.finish
                try:
                    self._take(await end(reason))
                except Exception as exc:  # kept until every episode of the batch is graded
                    self._lose(exc)
            return self._reward if self.error is None else None

    async def close(self) -> None:
        """Stop the sandbox and refuse further episodes. Idempotent, at any time, also while a call runs."""
        self._is_closed = True
        if self._env is not None and self.error is None and not self._is_done:
            self.error = _closed_error()
        await self._release()

    async def _open(self, config: TerminalEnvConfig, pool_size: int | None, budget: RetryBudget) -> None:
        for attempt in itertools.count():
            if self._is_closed or self._run.is_closed:
                raise _closed_error()
            pool = None
            if pool_size is not None:
                pool = shared_pool(config, size=pool_size)
                self._run.pools.add(pool)
            self._env = AsyncTerminalGymEnv(config, pool=pool)
            try:
                await self._env.reset()
                return
            except HarborGymError as exc:
                if not classify(exc).is_retryable or not await budget.allows(exc, attempt):
                    raise

    def _take(self, result: StepResult) -> str:
        self._reward += result.reward
        self._is_done = result.done
        return result.observation

    def _lose(self, error: Exception) -> None:
        self.error = error
        logger.warning("an episode was lost (%s): %s: %s", classify(error).failure_kind, type(error).__name__, error)

    async def _release(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            await env.close()


def _closed_error() -> UsageError:
    return UsageError("the HarborSpec was closed: make a new one for another run")


async def close_run(run_id: str) -> None:
    """Close every slot and warm pool of a spec in this process, side by side, and refuse its further episodes."""
    run = _runs[run_id]
    run.is_closed = True
    async with asyncio.TaskGroup() as group:
        for item in (*run.slots, *run.pools):
            group.create_task(item.close())


def is_closed(run_id: str) -> bool:
    """Return whether a spec was closed in this process."""
    return _runs[run_id].is_closed
