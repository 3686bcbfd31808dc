"""Run many episodes on the portal's loop; a blocking function in the trainer's thread samples for them in batches."""

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harbor_gym._runtime.portal import get_portal
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.errors import UsageError
from harbor_gym.rollout import run_with_retries
from harbor_gym.stragglers import ClosedGroup, EpisodeClock, Stragglers, play_rollouts
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import Rollout, Sample

type Generate = Callable[[list[list[int]]], Sequence[Sample | Exception]]
"""Samples one message per prompt, in order. An exception in a sample's place is raised in that prompt's episode."""

type MakeEnv = Callable[[], TokenTerminalEnv]
"""Makes the environment of one attempt at an episode."""

type Job[T] = Callable[[], Coroutine[Any, Any, T]]


@dataclass(slots=True)
class _Request:
    prompt: list[int]
    answer: asyncio.Future[Sample]
    asked_at: float
    queued_sec: float = 0.0


class BatchSampler:
    """Answer the prompts of many episodes in batches, for trainers whose engine samples whole batches and blocks.

    Use this object as the episodes' sampler. A batch is sampled when every live episode waits for its answer, or
    ``linger_sec`` after the first prompt. While a batch is being sampled, prompts for the next one are collected.

    Args:
        generate: Samples a batch. It is called in the thread that calls :meth:`run`, one batch at a time.
        linger_sec: Longest wait for other episodes' prompts, in seconds, while nothing is being sampled.
        max_batch_size: Most prompts in a batch; None is no limit.

    Raises:
        UsageError: A number is out of range.

    Example::

        sampler = BatchSampler(lambda prompts: engine.generate(prompts))
        rollouts = sampler.run_episodes([make_env] * 16)
    """

    def __init__(self, generate: Generate, *, linger_sec: float = 0.2, max_batch_size: int | None = None) -> None:
        if linger_sec < 0:
            raise UsageError(f"linger_sec must be at least 0, got {linger_sec:g}")
        if max_batch_size is not None and max_batch_size < 1:
            raise UsageError(f"max_batch_size must be at least 1, got {max_batch_size}")
        self._generate, self._linger_sec, self._max_batch_size = generate, linger_sec, max_batch_size
        self._waiting: list[_Request] = []
        self._batches: queue.SimpleQueue[list[_Request] | None] = queue.SimpleQueue()
        self._live = 0
        self._is_sampling = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False
        self._task: asyncio.Task[Any] | None = None

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Return the sample of one prompt, with the seconds that it waited for its batch.

        Raises:
            Exception: ``generate`` returned it in this sample's place.
            UsageError: No :meth:`run` is active.
        """
        if self._live == 0:
            raise UsageError("a BatchSampler answers only the episodes of its own run")
        loop = asyncio.get_running_loop()
        request = _Request(list(prompt), loop.create_future(), loop.time())
        self._waiting.append(request)
        self._hand_over()
        try:
            return await request.answer
        finally:
            if request in self._waiting:  # cancelled before its batch was due
                self._waiting.remove(request)

    def run_episodes(
        self, make_envs: Sequence[Callable[[], TokenTerminalEnv]], *, max_retries: int = 1
    ) -> list[Rollout]:
        """Run one episode of each environment concurrently, and return the rollouts in order. Blocks.

        Args:
            make_envs: For each episode, a function that makes the environment of one attempt, on the portal's loop.
            max_retries: Retries of each episode, see :func:`harbor_gym.run_with_retries`.

        Raises:
            Exception: As :meth:`run`.
        """
        return self.run([lambda make=make: run_with_retries(make, self, max_retries=max_retries) for make in make_envs])

    def run_groups(
        self, groups: Sequence[Sequence[MakeEnv]], stragglers: Stragglers, *, max_retries: int = 1
    ) -> list[tuple[list[Rollout], ClosedGroup[Rollout]]]:
        """Run groups of episodes concurrently, each by :func:`harbor_gym.stragglers.play_rollouts`. Blocks.

        A batch that is being sampled at the deadline is finished, and its late answers are not used.

        Args:
            groups: For each group, a function per episode that makes the environment of one attempt. Over-sampled
                episodes use the group's last function.
            stragglers: How to treat the slowest episodes of each group.
            max_retries: Retries of each episode, see :func:`harbor_gym.run_with_retries`.

        Raises:
            Exception: As :meth:`run`.
        """

        async def play_group(makes: Sequence[MakeEnv]) -> tuple[list[Rollout], ClosedGroup[Rollout]]:
            async def play(place: int, clock: EpisodeClock) -> Rollout:
                make = makes[min(place, len(makes) - 1)]
                return await self._run_one(lambda: run_with_retries(make, self, max_retries=max_retries, clock=clock))

            return await play_rollouts(len(makes), stragglers, play)

        live = sum(stragglers.started(len(makes)) for makes in groups)
        return self._run_blocking([lambda makes=makes: play_group(makes) for makes in groups], live)

    def run[T](self, jobs: Sequence[Job[T]]) -> list[T]:
        """Run jobs that use this object as their sampler on the portal's loop, and sample in this thread. Blocks.

        Args:
            jobs: Async functions without arguments, one per episode.

        Returns:
            The jobs' results, in order.

        Raises:
            Exception: The first that a job or ``generate`` raised. The other jobs are cancelled and awaited first, also
                after an interrupt.
            UsageError: A run is active already, or ``generate`` returned a wrong number of samples.
        """
        return self._run_blocking([lambda job=job: self._run_one(job) for job in jobs], len(jobs))

    def _run_blocking[T](self, jobs: Sequence[Job[T]], live: int) -> list[T]:
        """Run jobs that call :meth:`_run_one` for each of their episodes, ``live`` episodes in all."""
        if self._live:
            raise UsageError("a BatchSampler runs one batch of episodes at a time")
        self._live = live
        portal = get_portal()
        running = portal.submit(self._run, jobs)
        try:
            while (batch := self._batches.get()) is not None:
                answers = self._sample(batch)
                portal.submit(self._deliver, batch, answers)
            return running.result()
        except BaseException:
            portal.call(self._abort)
            concurrent.futures.wait((running,))
            raise
        finally:
            self._batches = queue.SimpleQueue()

    def _sample(self, batch: list[_Request]) -> list[Sample | Exception]:
        answers = list(self._generate([request.prompt for request in batch]))
        if len(answers) != len(batch):
            raise UsageError(f"generate returned {len(answers)} samples for {len(batch)} prompts")
        return answers

    # -- on the portal's loop --------------------------------------------------------------------------------------

    async def _run[T](self, jobs: Sequence[Job[T]]) -> list[T]:
        self._waiting, self._is_sampling, self._is_overdue = [], False, False
        self._task = asyncio.current_task()
        try:
            async with task_group() as group:
                tasks = [group.create_task(job()) for job in jobs]
        finally:
            self._live = 0
            self._batches.put(None)
        return [task.result() for task in tasks]

    async def _run_one[T](self, job: Job[T]) -> T:
        try:
            return await job()
        finally:
            self._live -= 1
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the trainer's thread the next batch if it is due, or else start the timer for it."""
        if self._is_sampling or not self._waiting:
            return
        size = min(self._live, self._max_batch_size or self._live)
        if self._is_overdue or len(self._waiting) >= size:
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            self._is_sampling, self._is_overdue = True, False
            for request in batch:
                request.queued_sec = asyncio.get_running_loop().time() - request.asked_at
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._batches.put(batch)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_sec, self._overdue)

    def _overdue(self) -> None:
        self._timer, self._is_overdue = None, bool(self._waiting)
        self._hand_over()

    async def _deliver(self, batch: list[_Request], answers: list[Sample | Exception]) -> None:
        self._is_sampling = False
        for request, answer in zip(batch, answers, strict=True):
            if request.answer.done():
                continue  # its episode was cancelled meanwhile
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(replace(answer, queued_sec=request.queued_sec))
        self._hand_over()

    async def _abort(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
