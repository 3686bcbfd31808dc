"""Plays groups of episodes concurrently and returns them as samples of ``AsyncGRPOTrainer``."""

import functools
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.trl.harness import HarnessSettings
from harbor_gym.adapters.trl.rewards import LOST_METRIC
from harbor_gym.adapters.trl.slot import run_of
from harbor_gym.errors import HarborGymError
from harbor_gym.rollout import context_tokens_of, end_word, run_with_retries
from harbor_gym.sequences import flatten, staleness
from harbor_gym.stragglers import EpisodeClock, play_rollouts
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import ChatCodec, Rollout, Sample, Sampler, TokenSequence, Turn

if TYPE_CHECKING:
    import numpy as np

_STD_EPSILON = 1e-8
"""Added to a group's standard deviation as in TRL's own worker, so that equal rewards give an advantage of 0."""

type Metrics = dict[str, float | tuple[float, float]]
"""Values by name: a number, or the numerator and denominator of a rate."""


@dataclass(frozen=True)
class GroupPlan:
    """The settings of the groups. It pickles if its codec and ``open_sampler`` do."""

    settings: HarnessSettings
    """Tasks, sandbox and budgets."""

    codec: ChatCodec
    """Writes and parses the policy's chats."""

    open_sampler: Callable[[], AbstractAsyncContextManager[Sampler]]
    """Opens the policy's sampler; called once, in the process that plays the groups."""

    num_generations: int
    """Number of episodes in a group."""

    groups_at_once: int
    """Number of concurrent groups."""

    max_tokens: int
    """Most tokens of one message."""

    max_context_tokens: int | None
    """Most tokens of an episode; None is no limit."""

    max_lost_groups: int
    """Number of groups in a row with nothing to train on that raises an error."""

    max_token_staleness: int | None = None
    """Tokens that are more weight versions behind the newest at their group's end are not trained; None trains all."""


@dataclass(frozen=True)
class EpisodeSample:
    """An episode as the fields of TRL's ``RolloutSample``, which takes seconds to import: only the trainer needs it."""

    prompt: list[dict[str, str]]
    completion: list[dict[str, str]]
    input_ids: "np.ndarray"
    completion_mask: "np.ndarray"
    old_log_probs: "np.ndarray"
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float


class GroupPlayer:
    """Plays groups of the tasks in turn, again and again, until it is cancelled.

    Args:
        plan: The settings of the groups.
        emit: Called with each sample, and awaited before the group's next one.
        report: Called with each group's metrics.
        version: Returns the version of the engine's current weights.
    """

    def __init__(
        self,
        plan: GroupPlan,
        *,
        emit: Callable[[EpisodeSample], Awaitable[None]],
        report: Callable[[Metrics], None],
        version: Callable[[], int],
    ) -> None:
        self._plan, self._emit, self._report, self._version = plan, emit, report, version
        self._lost_in_a_row = 0

    async def run(self) -> None:
        """Play groups without end. On the portal's loop.

        Raises:
            HarborGymError: ``max_lost_groups`` groups in a row gave nothing to train on, so the trainer would wait for
                ever; or a task or the configuration is wrong, which no retry can repair.
        """
        numbers = itertools.count()
        async with self._plan.open_sampler() as sample, task_group() as lanes:
            for _ in range(self._plan.groups_at_once):
                lanes.create_task(self._play_on(numbers, sample))

    async def play(self, number: int, sample: Sampler) -> list[EpisodeSample]:
        """Play a group and return a sample for each episode that has something to train on.

        Args:
            number: The group's number, from 0, which determines the task.
            sample: Called once for each turn of each episode.

        Raises:
            HarborGymError: As :meth:`run`.
        """
        plan, started, version = self._plan, time.monotonic(), self._version()
        indices = list(plan.settings.task_dirs)
        index = indices[number % len(indices)]
        versioned = _Versioned(sample, self._version)
        stragglers = plan.settings.stragglers
        rollouts, closed = await play_rollouts(
            plan.num_generations, stragglers, lambda place, clock: _play(plan, index, versioned, clock)
        )
        newest, sequences = self._version(), [flatten(rollout) for rollout in rollouts]
        behind = {f"rollout/tokens_{age}_behind_total": float(n) for age, n in staleness(sequences, newest).items()}
        if plan.max_token_staleness is not None:
            oldest = newest - plan.max_token_staleness
            sequences, version = [sequence.masked(older_than=oldest) for sequence in sequences], max(version, oldest)
        samples = _as_samples(rollouts, sequences, version, number)
        metrics = _metrics(rollouts, time.monotonic() - started) | behind
        if stragglers.is_active:
            task = plan.settings.task_dirs[index].name
            metrics |= {**closed.metrics, f"stragglers/{task}/dropped_total": float(len(closed.dropped))}
        self._report(metrics)
        self._count_lost(rollouts, is_lost=not samples)
        return samples

    async def _play_on(self, numbers: "itertools.count[int]", sample: Sampler) -> None:
        while True:
            for item in await self.play(next(numbers), sample):
                await self._emit(item)

    def _count_lost(self, rollouts: Sequence[Rollout], *, is_lost: bool) -> None:
        self._lost_in_a_row = self._lost_in_a_row + 1 if is_lost else 0
        if self._lost_in_a_row >= self._plan.max_lost_groups:
            ends = Counter(end_word(rollout) for rollout in rollouts)
            counts = ", ".join(f"{name}: {count}" for name, count in ends.most_common())
            errors = [rollout.error for rollout in rollouts if rollout.error is not None]
            raise HarborGymError(
                f"{self._lost_in_a_row} groups of {self._plan.num_generations} episodes in a row gave nothing to train "
                f"on (the last one: {counts}); repair that, or raise max_lost_groups"
                + (f". The last error: {errors[-1]}" if errors else "")
            ) from (errors[-1] if errors else None)


async def _play(plan: GroupPlan, task_index: int, sample: Sampler, clock: EpisodeClock) -> Rollout:
    settings, config = plan.settings, plan.settings.config_of(task_index)

    def make() -> TokenTerminalEnv:
        env = run_of(settings.run_id).make_env(config, pool_size=settings.pool_size)
        return TokenTerminalEnv(env, plan.codec, max_tokens=plan.max_tokens, max_context_tokens=plan.max_context_tokens)

    return await run_with_retries(make, sample, max_retries=settings.max_retries, clock=clock)


@dataclass(frozen=True)
class _Versioned:
    """A sampler that adds to each sample the version of the weights at its beginning."""

    sample: Sampler
    version: Callable[[], int]

    async def __call__(self, prompt: Sequence[int], /) -> Sample:
        version = self.version()
        return replace(await self.sample(prompt), version=version)

    async def context_tokens(self) -> int | None:
        return await context_tokens_of(self.sample)


def _as_samples(
    rollouts: Sequence[Rollout], sequences: Sequence[TokenSequence], version: int, group: int
) -> list[EpisodeSample]:
    import numpy as np

    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    mean, std = (statistics.fmean(rewards), statistics.pstdev(rewards)) if rewards else (math.nan, math.nan)
    samples: list[EpisodeSample] = []
    for rollout, sequence in zip(rollouts, sequences, strict=True):
        if rollout.reward is None or not any(sequence.mask):
            continue
        shown = len(sequence.prompt)
        prompt, completion = _messages(rollout.turns)
        samples.append(
            EpisodeSample(
                prompt=prompt,
                completion=completion,
                input_ids=np.asarray(sequence.token_ids, dtype=np.int64),
                completion_mask=np.asarray([0] * shown + sequence.mask, dtype=np.int64),
                old_log_probs=np.asarray([0.0] * shown + sequence.logprobs, dtype=np.float32),
                advantage=(rollout.reward - mean) / (std + _STD_EPSILON),
                model_version=version,
                group_id=group,
                metrics={"reward": rollout.reward, "reward_std": std, "rewards/rollout_reward": rollout.reward},
                enqueued_at=time.time(),
            )
        )
    return samples


def _messages(turns: Sequence[Turn]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return an episode's chat for the trainer's logs: the first message, and the messages after it."""
    pairs = [
        ({"role": "user", "content": turn.observation}, {"role": "assistant", "content": turn.action}) for turn in turns
    ]
    chat = [message for pair in pairs for message in pair]
    return chat[:1], chat[1:]


def _metrics(rollouts: Sequence[Rollout], duration_sec: float) -> Metrics:
    ends = Counter(end_word(rollout) for rollout in rollouts)
    lost = sum(rollout.is_lost for rollout in rollouts)
    turns = sum(len(rollout.transitions) for rollout in rollouts)
    return {
        LOST_METRIC: (float(lost), float(len(rollouts))),
        "rollout/turns_mean": (float(turns), float(len(rollouts))),
        "rollout/duration_s": duration_sec,
        **{f"harbor/{end}_total": float(count) for end, count in ends.items()},
    }


def ready(sampler: Sampler) -> Callable[[], AbstractAsyncContextManager[Sampler]]:
    """Return an ``open_sampler`` for a sampler that is already open; it pickles if the sampler does."""
    return functools.partial(_Ready, sampler)


class _Ready(AbstractAsyncContextManager[Sampler]):
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def __aenter__(self) -> Sampler:
        return self._sampler

    async def __aexit__(self, *error: Any) -> None:
        return None
