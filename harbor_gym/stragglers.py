"""Groups that don't wait for their slowest episodes: by starting more than the group's size, or by a deadline."""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.errors import BudgetSpentError, HarborGymError, UsageError
from harbor_gym.outcomes import describe
from harbor_gym.types import EndReason, Rollout

_TAIL = 0.8
"""``stragglers/wait_sec`` starts when this share of a group's episodes has ended."""

logger = logging.getLogger(__name__)


class BatchDeadlineError(BudgetSpentError):
    """The batch's deadline has passed: the episode ends truncated, and is verified."""

    reason = EndReason.BATCH_DEADLINE.value


class DropReason(StrEnum):
    """Why an episode was dropped. A dropped episode is not verified and has no reward."""

    GROUP_FULL = "group_full"
    """Enough other episodes of its group had ended with a verdict."""

    BATCH_DEADLINE = "batch_deadline"
    """The batch's deadline passed before the policy's first answer: there is nothing to grade or to train on."""


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """How to treat a group's slowest episodes. The defaults wait for all of them.

    Raises:
        UsageError: A number is out of range.
    """

    over_sample: float = 1.0
    """The number of episodes to start, as a multiple of the group's size. The first that end with a verdict are the
    group, and the others are dropped."""

    batch_deadline_sec: float | None = None
    """Seconds from the group's start after which the running episodes end as ``batch_deadline`` and are verified; None
    sets no deadline."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.over_sample) and self.over_sample >= 1):
            raise UsageError(f"over_sample must be at least 1, got {self.over_sample:g}")
        if self.batch_deadline_sec is not None and not self.batch_deadline_sec > 0:
            raise UsageError(f"batch_deadline_sec must be above 0, got {self.batch_deadline_sec:g}")

    @property
    def is_active(self) -> bool:
        """Whether an episode may be dropped or truncated."""
        return self.over_sample > 1 or self.batch_deadline_sec is not None

    def started(self, size: int) -> int:
        """Return how many episodes to start for a group of ``size``, rounded up."""
        return math.ceil(round(size * self.over_sample, 9))


class EpisodeClock:
    """Enforces the batch's deadline in one episode, and counts the policy's answers.

    Args:
        ends_at: The deadline, in seconds of the event loop's clock; None sets none.
    """

    def __init__(self, ends_at: float | None = None) -> None:
        self.ends_at = ends_at
        self.answers = 0
        """Answers of the policy in the current attempt."""

        self.dropped: DropReason | None = None
        """Why the episode was dropped; None if it was not."""

        self.seconds = 0.0
        """The episode's duration, set at its end."""

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.ends_at is not None and asyncio.get_running_loop().time() >= self.ends_at

    def restart(self) -> bool:
        """Begin another attempt; return whether there is time for one."""
        self.answers = 0
        return not self.is_over

    async def answer[T](self, sample: Callable[[], Awaitable[T]]) -> T:
        """Wait for an answer of the policy.

        Raises:
            BatchDeadlineError: The deadline has passed. A running ``sample`` is cancelled.
        """
        late = BatchDeadlineError("the batch's deadline has passed")
        if self.is_over:
            raise late
        limit = asyncio.timeout_at(self.ends_at)
        try:
            async with limit:
                result = await sample()
        except TimeoutError:
            if limit.expired():
                raise late from None
            raise
        self.answers += 1
        return result


@dataclass(frozen=True)
class ClosedGroup[T]:
    """A group whose episodes have all ended. An episode's place is its number in the order of starting, from 0."""

    ended: Mapping[int, T]
    """Place → result of each episode that counts, at most the group's size."""

    clocks: tuple[EpisodeClock, ...]
    """The clock of each started episode, by place."""

    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """``stragglers/wait_sec``: seconds from the end of four fifths of the group to the end of all. Where an episode may
    be dropped, also ``started`` and ``dropped`` (episodes), ``dropped_sec`` (the dropped ones' seconds), and
    ``dropped_turns`` and ``kept_turns`` (mean answers of the policy, each if there is such an episode)."""

    @property
    def dropped(self) -> dict[int, DropReason]:
        """Place → reason of each dropped episode."""
        return {place: clock.dropped for place, clock in enumerate(self.clocks) if clock.dropped is not None}


def equal_places(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return a list of places for each distinct key, by first occurrence: the groups of a batch."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return list(places.values())


async def play_group[T](
    size: int, stragglers: Stragglers, play: Callable[[int, EpisodeClock], Awaitable[T | None]]
) -> ClosedGroup[T]:
    """Play a group's episodes concurrently until ``size`` of them have ended with a verdict.

    Args:
        size: Episodes that count.
        stragglers: How many to start, and how long they may take.
        play: Plays the episode of a place to its verdict; returns None if the infrastructure failed. It takes each
            answer of the policy through :meth:`EpisodeClock.answer`, whose ``BatchDeadlineError`` it turns into a
            truncation, or lets through before the first answer. A dropped episode is cancelled, with the clock's
            ``dropped`` set, and must clean up.

    Returns:
        The episodes that count, after the others have been cancelled and awaited.

    Raises:
        Exception: The first that ``play`` raised; the other episodes are cancelled and awaited.
    """
    return await _Group(size, stragglers, play).run()


async def play_rollouts(
    size: int, stragglers: Stragglers, play: Callable[[int, EpisodeClock], Awaitable[Rollout]]
) -> tuple[list[Rollout], ClosedGroup[Rollout]]:
    """Play a group by :func:`play_group`, with a rollout for each episode, also for a lost one.

    Returns:
        ``size`` rollouts, ordered by place: the episodes that count, then, if these are too few, lost ones, then
        dropped ones, which have the end reason ``DROPPED``.
    """
    lost: dict[int, Rollout] = {}

    async def play_one(place: int, clock: EpisodeClock) -> Rollout | None:
        rollout = await play(place, clock)
        if rollout.is_lost:
            lost[place] = rollout
        return None if rollout.is_lost else rollout

    closed = await play_group(size, stragglers, play_one)
    dropped = {place: Rollout(end_reason=EndReason.DROPPED, reward=None) for place in closed.dropped}
    known = {**closed.ended, **lost, **dropped}
    return [known[place] for place in sorted(list(known)[:size])], closed


class _Group[T]:
    def __init__(
        self, size: int, stragglers: Stragglers, play: Callable[[int, EpisodeClock], Awaitable[T | None]]
    ) -> None:
        limit = stragglers.batch_deadline_sec
        self._ends_at = None if limit is None else asyncio.get_running_loop().time() + limit
        self._size, self._stragglers, self._play = size, stragglers, play
        self._clocks = tuple(EpisodeClock(self._ends_at) for _ in range(stragglers.started(size)))
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: dict[int, T] = {}
        self._end_times: list[float] = []

    async def run(self) -> ClosedGroup[T]:
        timer: asyncio.TimerHandle | None = None
        try:
            async with task_group() as tasks:
                self._tasks += [tasks.create_task(self._run(place)) for place in range(len(self._clocks))]
                if self._ends_at is not None:
                    timer = asyncio.get_running_loop().call_at(self._ends_at, self._drop_unbegun)
        finally:
            if timer is not None:
                timer.cancel()
        ended = {place: self._ended[place] for place in sorted(self._ended)}
        return ClosedGroup(ended, self._clocks, self._metrics())

    async def _run(self, place: int) -> None:
        clock, started = self._clocks[place], time.monotonic()
        try:
            result = await self._play(place, clock)
        except asyncio.CancelledError:
            if clock.dropped is None:
                raise
            return
        except BatchDeadlineError:
            clock.dropped = clock.dropped or DropReason.BATCH_DEADLINE
            return
        except HarborGymError as exc:
            if clock.dropped is None:
                raise
            logger.warning("an episode that was dropped did not end cleanly: %s", describe(exc))
            return
        finally:
            clock.seconds = time.monotonic() - started
        if clock.dropped is not None or result is None:
            return
        self._ended[place] = result
        self._end_times.append(time.monotonic())
        if len(self._ended) == self._size:
            self._drop(DropReason.GROUP_FULL, lambda clock: True)

    def _drop_unbegun(self) -> None:
        self._drop(DropReason.BATCH_DEADLINE, lambda clock: not clock.answers)

    def _drop(self, why: DropReason, is_dropped: Callable[[EpisodeClock], bool]) -> None:
        current = asyncio.current_task()  # of the episode that filled the group; none in the timer's callback
        for task, clock in zip(self._tasks, self._clocks, strict=True):
            if task is not current and not task.done() and clock.dropped is None and is_dropped(clock):
                clock.dropped = why
                task.cancel()

    def _metrics(self) -> dict[str, float]:
        times = self._end_times
        metrics = {"wait_sec": times[-1] - times[max(0, int(len(times) * _TAIL) - 1)] if times else 0.0}
        if self._stragglers.is_active:
            dropped = [clock for clock in self._clocks if clock.dropped is not None]
            metrics |= {
                "started": float(len(self._clocks)),
                "dropped": float(len(dropped)),
                "dropped_sec": math.fsum(clock.seconds for clock in dropped),
                **_mean_turns("dropped", dropped),
                **_mean_turns("kept", [self._clocks[place] for place in self._ended]),
            }
        return {f"stragglers/{name}": value for name, value in metrics.items()}


def _mean_turns(name: str, clocks: list[EpisodeClock]) -> dict[str, Any]:
    return {f"{name}_turns": statistics.fmean(clock.answers for clock in clocks)} if clocks else {}
