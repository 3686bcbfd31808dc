"""One trainer's slot on the portal's loop: one episode after another, each call behind the ones before it."""

import asyncio
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
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

TASK_OVER = "[the task is over]"
"""What the tool returns that handed in the last step."""

NO_ANSWER = "[there was no answer in time]"
"""What a tool returns whose command did not end."""

type Preparation = Callable[[AsyncTerminalGymEnv], Awaitable[None]]
"""Makes an episode ready for a harness's tools, before the policy acts."""

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

        self._run_id = run_id
        _runs[run_id].slots.add(self)
        self._lock = asyncio.Lock()
        self._env: AsyncTerminalGymEnv | None = None
        self._reward = 0.0
        self._is_done = False
        self._is_closed = False

    async def start(
        self,
        config: TerminalEnvConfig,
        *,
        pool_size: int | None,
        max_retries: int,
        prepare: Preparation | None = None,
    ) -> None:
        """Close the last episode, start one and prepare it, again while that fails and retries last."""
        async with self._lock:
            self.error, self._reward, self._is_done = None, 0.0, False
            try:
                await self._release()
                await RetryBudget(max_retries).run(lambda: self._open(config, pool_size, prepare))
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

    async def exec(self, command: str, *, timeout_sec: float) -> str:
        """Run shell text beside the terminal as one turn; return its output, or why nothing was executed."""
        async with self._lock:
            if self.error is not None:
                return TERMINAL_LOST
            if self._is_done:
                return EPISODE_OVER
            assert self._env is not None
            try:
                result = await self._env.exec(command, timeout_sec=timeout_sec)
                self._take(await self._env.step(()))  # a turn without keystrokes: the budgets are the environment's
            except Exception as exc:  # kept for the reward function, as above
                self._lose(exc)
                return TERMINAL_LOST
            return result.output if result.return_code is not None else NO_ANSWER

    async def finish(self, reason: EndReason) -> float | None:
        """Verify the episode with all its steps, unless that is done; return its reward, None without a verdict."""
        async with self._lock:
            while self.error is None and not self._is_done:
                assert self._env is not None
                end = self._env.truncate if reason.is_truncation else self._env.finish
                try:
                    self._take(await end(reason))
                except Exception as exc:  # kept until every episode of the batch is graded
                    self._lose(exc)
            return self._reward if self.error is None else None

    async def finish_step(self) -> str:
        """Verify the step; return the next one's instruction, or that there is none."""
        async with self._lock:
            if self.error is not None:
                return TERMINAL_LOST
            if self._is_done:
                return EPISODE_OVER
            assert self._env is not None
            try:
                shown = self._take(await self._env.finish())
            except Exception as exc:  # kept for the reward function, as above
                self._lose(exc)
                return TERMINAL_LOST
            return TASK_OVER if self._is_done else shown

    async def close(self) -> None:
        """Stop the sandbox and refuse further episodes. Idempotent, at any time, also while a call runs."""
        self._is_closed = True
        if self._env is not None and self.error is None and not self._is_done:
            self.error = _closed_error()
        await self._release()

    async def _open(self, config: TerminalEnvConfig, pool_size: int | None, prepare: Preparation | None) -> None:
        if self._is_closed:
            raise _closed_error()
        self._env = make_env(self._run_id, config, pool_size=pool_size)
        try:
            await self._env.reset()
            if prepare is not None:
                await prepare(self._env)
        except HarborGymError:
            await self._release()
            raise

    def _take(self, result: StepResult) -> str:
        self._reward = result.info.get("episode_reward", 0.0)
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


def make_env(run_id: str, config: TerminalEnvConfig, *, pool_size: int | None) -> AsyncTerminalGymEnv:
    """Return an environment of a spec, with the spec's warm pool if it has one. On the portal's loop.

    Args:
        run_id: The spec's, for :func:`close_run`, which closes the pool.
        config: The episode's.
        pool_size: Sandboxes that the pool keeps ready; None takes none.

    Raises:
        UsageError: The spec was closed.
    """
    run = _runs[run_id]
    if run.is_closed:
        raise _closed_error()
    if pool_size is None:
        return AsyncTerminalGymEnv(config)
    pool = shared_pool(config, size=pool_size)
    run.pools.add(pool)
    return AsyncTerminalGymEnv(config, pool=pool)


async def close_run(run_id: str) -> None:
    """Close every slot and warm pool of a spec in this process, side by side, and refuse its further episodes."""
    run = _runs[run_id]
    run.is_closed = True
    async with asyncio.TaskGroup() as group:
        for item in (*run.slots, *run.pools):
            group.create_task(item.close())


async def close_runs() -> None:
    """Close every spec's slots and pools in this process."""
    async with asyncio.TaskGroup() as group:
        for run_id in list(_runs):
            group.create_task(close_run(run_id))


def is_closed(run_id: str) -> bool:
    """Return whether a spec was closed in this process."""
    return _runs[run_id].is_closed
