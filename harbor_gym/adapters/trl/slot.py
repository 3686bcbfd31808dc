"""A trainer's slot on the portal's loop, which plays one episode after another and runs its calls in order."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import override

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.outcomes import classify, describe
from harbor_gym.slots import EpisodeSlot, Preparation, SlotOwner
from harbor_gym.stragglers import BatchDeadlineError, EpisodeClock
from harbor_gym.types import Command, EndReason, StepResult

EPISODE_OVER = "[the episode is over: nothing was executed]"
"""A tool's output after a budget of the episode ran out, or the shell session ended."""

TERMINAL_LOST = "[the terminal is gone: nothing was executed]"
"""A tool's output after a failure of the infrastructure. The episode's reward is None."""

TASK_OVER = "[the task is over]"
"""Output of the tool that submitted the last step."""

NO_ANSWER = "[there was no answer in time]"
"""A tool's output if its command did not end."""

logger = logging.getLogger(__name__)

_runs: defaultdict[str, SlotOwner] = defaultdict(
    lambda: SlotOwner("the HarborSpec was closed: make a new one for another run")
)
"""The slots of this process, by their spec's ``run_id``."""


class ToolSlot(EpisodeSlot):
    """Runs a slot's episodes for tools. Every method is a coroutine of the portal's loop.

    No method raises an exception: nobody awaits a start, and TRL would show a tool's exception to the policy as its
    output. :attr:`error` keeps it for the reward function.

    Args:
        run_id: The spec's identifier, for :func:`close_run`.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(_runs[run_id])
        self.error: Exception | None = None
        """The error that ended the episode without a reward, or None."""

        self._lock = asyncio.Lock()
        self._reward = 0.0
        self._is_done = False
        self._clock = EpisodeClock()

    async def begin(
        self,
        config: TerminalEnvConfig,
        *,
        pool_size: int | None,
        max_retries: int,
        deadline_sec: float | None = None,
        prepare: Preparation | None = None,
    ) -> None:
        """Start an episode, as :meth:`start` does; after so many seconds, the next turn ends it."""
        ends_at = None if deadline_sec is None else asyncio.get_running_loop().time() + deadline_sec
        limit = asyncio.timeout_at(ends_at)
        async with self._lock:
            self.error, self._reward, self._is_done, self._clock = None, 0.0, False, EpisodeClock(ends_at)
            try:
                async with limit:
                    await self.start(config, max_retries=max_retries, pool_size=pool_size, prepare=prepare)
            except TimeoutError as exc:
                self._lose(BatchDeadlineError("no sandbox by the batch's deadline") if limit.expired() else exc)
            except Exception as exc:  # kept for the reward function: nobody waits for a start
                self._lose(exc)

    async def run(self, commands: Sequence[Command]) -> str:
        """Type commands and return the terminal's text, or the reason why nothing was executed."""

        async def step(env: AsyncTerminalGymEnv) -> str:
            return self._take(await env.step(commands))

        return await self._act(self._in_time(step))

    async def exec(self, command: str, *, timeout_sec: float) -> str:
        """Run shell text outside the terminal as one turn; return its output, or why nothing was executed."""

        async def step(env: AsyncTerminalGymEnv) -> str:
            result = await env.exec(command, timeout_sec=timeout_sec)
            self._take(await env.step(()))  # a turn without keystrokes: the budgets are the environment's
            return result.output if result.return_code is not None else NO_ANSWER

        return await self._act(self._in_time(step))

    async def finish_step(self) -> str:
        """Verify the step; return the next one's instruction, or that there is none."""

        async def step(env: AsyncTerminalGymEnv) -> str:
            shown = self._take(await env.finish())
            return TASK_OVER if self._is_done else shown

        return await self._act(self._in_time(step))

    async def finish(self, reason: EndReason) -> float | None:
        """Verify the episode with all its steps, if not done yet; return its reward, None without a verdict."""

        async def end(env: AsyncTerminalGymEnv) -> str:
            while not self._is_done:
                self._take(await (env.truncate if reason.is_truncation else env.finish)(reason))
            return EPISODE_OVER

        await self._act(end)
        return self._reward if self.error is None else None

    @override
    async def close(self) -> None:
        """Stop the sandbox and refuse further episodes. Idempotent, at any time, also while a call runs."""
        if self._env is not None and self.error is None and not self._is_done:
            self.error = self._owner.closed_error()
        await super().close()

    def _in_time(
        self, act: Callable[[AsyncTerminalGymEnv], Awaitable[str]]
    ) -> Callable[[AsyncTerminalGymEnv], Awaitable[str]]:
        """Return a turn that ends the episode if the batch's deadline has passed; an episode without a turn is lost."""

        async def turn(env: AsyncTerminalGymEnv) -> str:
            if not self._clock.is_over:
                self._clock.answers += 1
                return await act(env)
            if not self._clock.answers:
                raise BatchDeadlineError("no tool was called by the batch's deadline")
            self._take(await env.truncate(EndReason.BATCH_DEADLINE))
            return EPISODE_OVER

        return turn

    async def _act(self, act: Callable[[AsyncTerminalGymEnv], Awaitable[str]]) -> str:
        async with self._lock:
            if self.error is not None:
                return TERMINAL_LOST
            if self._is_done:
                return EPISODE_OVER
            try:
                return await act(self.env)
            except Exception as exc:  # kept for the reward function: TRL would show it to the policy
                self._lose(exc)
                return TERMINAL_LOST

    def _take(self, result: StepResult) -> str:
        self._reward = result.info.get("episode_reward", 0.0)
        self._is_done = result.done
        return result.observation

    def _lose(self, error: Exception) -> None:
        self.error = error
        logger.warning("an episode was lost (%s): %s", classify(error).failure_kind, describe(error))


def run_of(run_id: str) -> SlotOwner:
    """Return a spec's slots and pools in this process."""
    return _runs[run_id]


async def close_run(run_id: str) -> None:
    """Close every slot and warm pool of a spec in this process, side by side, and refuse its further episodes."""
    await _runs[run_id].close()
