"""Plays groups of episodes concurrently and returns them as samples of ``AsyncGRPOTrainer``."""

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harbor.models.trial.config import TaskConfig

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.trl.rewards import LOST_METRIC
from harbor_gym.config import AnyEpisode
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.rollout import context_tokens_of, end_word
from harbor_gym.sequences import staleness
from harbor_gym.stragglers import Stragglers
from harbor_gym.types import ChatCodec, Rollout, Sample, Sampler, TokenSequence, Turn

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.layout import RolloutSample  # seconds to import

_STD_EPSILON = 1e-8
"""Added to a group's standard deviation as in TRL's own worker, so that equal rewards give an advantage of 0."""

type Metrics = dict[str, float | tuple[float, float]]
"""Values by name: a number, or the numerator and denominator of a rate."""


@dataclass(frozen=True)
class GroupPlan:
    """The settings of the groups. It pickles if its codec and ``open_sampler`` do."""

    episode: AnyEpisode
    """How each episode is played. Its task replaces ``task_dir``."""

    task_dirs: Sequence[Path]
    """The tasks, which the groups play in turn."""

    codec: ChatCodec
    """Writes and parses the policy's chats."""

    open_sampler: Callable[[], AbstractAsyncContextManager[Sampler]]
    """Opens the policy's sampler; called once, in the process that plays the groups."""

    limits: SessionLimits
    """The budgets in tokens."""

    num_generations: int
    """Number of episodes in a group."""

    groups_at_once: int
    """Number of concurrent groups."""

    max_retries: int
    """Most retries of an episode."""

    stragglers: Stragglers
    """Limits on a group's slowest episodes."""

    pool_size: int | None
    """Sandboxes that a warm pool keeps ready for each task; None starts one per episode."""

    max_lost_groups: int
    """Number of groups in a row with nothing to train on that raises an error."""

    max_token_staleness: int | None = None
    """Tokens that are more weight versions behind the newest at their group's end are not trained; None trains all."""


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
        emit: Callable[["RolloutSample"], Awaitable[None]],
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

    async def play(self, number: int, sample: Sampler) -> "list[RolloutSample]":
        """Play a group and return a sample for each sequence that has something to train on.

        Args:
            number: The group's number, from 0, which determines the task.
            sample: Called once for each turn of each episode.

        Raises:
            HarborGymError: As :meth:`run`.
        """
        plan, started, version = self._plan, time.monotonic(), self._version()
        task = TaskConfig(path=plan.task_dirs[number % len(plan.task_dirs)])
        rollouts = await self._interface(sample).run([task] * plan.num_generations)
        newest, played = self._version(), [rollout.segments for rollout in rollouts]
        behind = staleness(itertools.chain.from_iterable(played), newest)
        if plan.max_token_staleness is not None:
            oldest = newest - plan.max_token_staleness
            played = [[segment.masked(older_than=oldest) for segment in segments] for segments in played]
            version = max(version, oldest)
        samples = _as_samples(rollouts, played, version, number)
        metrics = _metrics(rollouts, time.monotonic() - started)
        metrics |= {f"rollout/tokens_{age}_behind_total": float(count) for age, count in behind.items()}
        if (dropped := metrics.get("stragglers/dropped")) is not None:
            metrics[f"stragglers/{rollouts[0].task_name}/dropped_total"] = dropped
        self._report(metrics)
        self._count_lost(rollouts, is_lost=not samples)
        return samples

    def _interface(self, sample: Sampler) -> RolloutInterface:
        plan = self._plan
        return RolloutInterface(
            plan.episode,
            _Versioned(sample, self._version),
            plan.codec,
            limits=plan.limits,
            n_concurrent=plan.stragglers.started(plan.num_generations),
            max_retries=plan.max_retries,
            stragglers=plan.stragglers,
            pool_size=plan.pool_size,
        )

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
    rollouts: Sequence[Rollout], played: Sequence[Sequence[TokenSequence]], version: int, group: int
) -> "list[RolloutSample]":
    """Return a sample for each sequence with trained tokens; those of an episode have its advantage, as in TRL."""
    import numpy as np

    from harbor_gym.adapters.trl.layout import RolloutSample

    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    mean, std = (statistics.fmean(rewards), statistics.pstdev(rewards)) if rewards else (math.nan, math.nan)
    samples: list[RolloutSample] = []
    for rollout, segments in zip(rollouts, played, strict=True):
        if rollout.reward is None:
            continue
        prompt, completion = _messages(rollout.turns)
        for sequence in segments:
            if not any(sequence.mask):
                continue
            if sequence.routed_experts is not None:
                raise UsageError("AsyncGRPO has no place for routed experts: let the sampler ask for none")
            samples.append(
                RolloutSample(
                    prompt=prompt,
                    completion=completion,
                    input_ids=np.asarray(sequence.token_ids, dtype=np.int64),
                    completion_mask=np.asarray(sequence.token_mask, dtype=np.int64),
                    old_log_probs=np.asarray(sequence.token_logprobs, dtype=np.float32),
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
    turns = math.fsum(rollout.metrics.get("turns", 0.0) for rollout in rollouts)
    of_group = {name: value for name, value in rollouts[0].metrics.items() if name.startswith("stragglers/")}
    return {
        **of_group,
        LOST_METRIC: (float(lost), float(len(rollouts))),
        "rollout/turns_mean": (turns, float(len(rollouts))),
        "rollout/duration_s": duration_sec,
        **{f"harbor/{end}_total": float(count) for end, count in ends.items()},
    }
