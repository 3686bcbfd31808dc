"""Convert rollouts to the rows of SkyRL's ``GeneratorOutput``, also rollouts that the infrastructure lost.

SkyRL has no missing reward. A lost episode's row is one token with a zero mask, so that it has no loss; it still
affects the group's baseline:

* *One row per episode*: the row must stay, and its reward is the mean of the group's verdicts, which does not change
  that mean. An estimator that divides by a standard deviation or by the number of rows (GRPO's ``grpo_norm_by_std``,
  RLOO) still counts the row, and the group's advantages shrink.
* *Step-wise rows*: a trajectory may be missing, so a lost one is left out, and every estimator sees the group without
  it. One row is kept if a group has fewer than two verdicts: SkyRL counts prompts, and takes the reward of a single
  trajectory for its advantage.

A separate group id for the lost row would be exact for all estimators, but SkyRL refuses a batch with more groups than
prompts.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harbor_gym.rollout import end_word
from harbor_gym.sequences import split
from harbor_gym.types import EndReason, Rollout, TokenSequence


@dataclass(frozen=True)
class Trajectory:
    """The played episode of an input row."""

    group: str
    """Id of the group whose rewards are compared."""

    trajectory_id: Any
    """SkyRL's id of the trajectory, or None."""

    rollout: Rollout
    """The episode."""

    seconds: float
    """Duration of all attempts, in seconds."""

    sampling_sec: float
    """Seconds of these that the engine took."""

    @property
    def stop_reason(self) -> str:
        """SkyRL's stop reason: ``stop``, ``length`` for a truncated episode, ``error`` for a lost one."""
        if self.rollout.end_reason is EndReason.INFRASTRUCTURE_ERROR:
            return "error"
        return "length" if self.rollout.end_reason.is_truncation else "stop"


@dataclass(frozen=True)
class Row:
    """One row of the output."""

    sequence: TokenSequence
    reward: float
    """The trajectory's reward on its last row, 0.0 on the others."""

    is_last: bool
    trajectory: Trajectory


@dataclass(frozen=True)
class RowSettings:
    """How rows are made, in SkyRL's terms."""

    step_wise: bool
    is_training: bool
    zero_reward_on_non_stop: bool
    apply_overlong_filtering: bool
    filler_token: int
    """The single token of a row without sampled tokens."""

    oldest: int | None = None
    """The oldest version of the weights whose tokens are trained on; None is any."""


def make_rows(trajectories: Sequence[Trajectory], settings: RowSettings) -> list[Row]:
    """Return the rows of a batch, in the order of its trajectories.

    Args:
        trajectories: The batch. Without step-wise rows each trajectory has one row.
        settings: How rows are made.
    """
    rewards = _rewards(trajectories, settings)
    left_out = _left_out(trajectories, settings) if settings.step_wise else set[int]()
    rows: list[Row] = []
    for number, trajectory in enumerate(trajectories):
        if number not in left_out:
            sequences = _sequences(trajectory, settings)
            last = len(sequences) - 1
            rows += [
                Row(sequence, rewards[number] if place == last else 0.0, place == last, trajectory)
                for place, sequence in enumerate(sequences)
            ]
    return rows


def make_columns(rows: Sequence[Row], settings: RowSettings, *, has_logprobs: bool) -> dict[str, Any]:
    """Return SkyRL's columns of rows, without ``rollout_metrics``.

    Args:
        rows: The result of :func:`make_rows`.
        settings: The same settings.
        has_logprobs: Whether the engine returns log-probabilities.
    """
    ids = [row.trajectory.trajectory_id for row in rows]
    return {
        "prompt_token_ids": [row.sequence.prompt for row in rows],
        "response_ids": [row.sequence.completion for row in rows],
        "rewards": [_per_token(row) if settings.step_wise else row.reward for row in rows],
        "loss_masks": [row.sequence.mask for row in rows],
        "stop_reasons": [row.trajectory.stop_reason if row.is_last else "stop" for row in rows],
        "rollout_logprobs": [row.sequence.logprobs for row in rows] if has_logprobs else None,
        "trajectory_ids": None if None in ids else ids,
        "trajectory_generation_times": [row.trajectory.seconds for row in rows],
        "trajectory_time_splits": {
            "llm": [row.trajectory.sampling_sec for row in rows],
            "env": [max(0.0, row.trajectory.seconds - row.trajectory.sampling_sec) for row in rows],
        },
        "is_last_step": [row.is_last for row in rows] if settings.step_wise else None,
        "env_metrics": [_env_metrics(row.trajectory) for row in rows],
        "rollout_expert_indices": _routes(rows),
        "rollout_sample_support": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _routes(rows: Sequence[Row]) -> list[Any] | None:
    """Return each row's routed experts in the types that SkyRL takes; a row without loss has one row of padding."""
    known = [None if (routes := row.sequence.routed_experts) is None else routes.experts for row in rows]
    first = next((experts for experts in known if experts is not None), None)
    if first is None:
        return None
    import numpy as np
    from skyrl.backends.skyrl_train.utils.routed_experts import compact_routed_expert_indices

    filler = np.broadcast_to(np.arange(first.shape[2]), (1, *first.shape[1:]))
    return [compact_routed_expert_indices(filler if experts is None else experts) for experts in known]


def _rewards(trajectories: Sequence[Trajectory], settings: RowSettings) -> list[float]:
    """Return the reward of each trajectory; a lost one has the mean of its group's verdicts, or else of the batch's."""
    scored = [_scored(trajectory, settings) for trajectory in trajectories]
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory, reward in zip(trajectories, scored, strict=True):
        if reward is not None:
            groups[trajectory.group].append(reward)
    of_batch = _mean([reward for reward in scored if reward is not None])
    return [
        reward if reward is not None else _mean(groups.get(trajectory.group, []), default=of_batch)
        for trajectory, reward in zip(trajectories, scored, strict=True)
    ]


def _scored(trajectory: Trajectory, settings: RowSettings) -> float | None:
    if trajectory.rollout.is_lost:
        return None
    is_zeroed = settings.zero_reward_on_non_stop and trajectory.stop_reason != "stop"
    return 0.0 if is_zeroed else trajectory.rollout.reward


def _mean(values: Sequence[float], *, default: float = 0.0) -> float:
    return math.fsum(values) / len(values) if values else default


def _left_out(trajectories: Sequence[Trajectory], settings: RowSettings) -> set[int]:
    """Return the indices of the trajectories without a row."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, trajectory in enumerate(trajectories):
        groups[trajectory.group].append(number)
    left_out: set[int] = set()
    for numbers in groups.values():
        lost = [number for number in numbers if trajectories[number].rollout.is_lost]
        has_baseline = len(numbers) - len(lost) >= 2 or not settings.is_training
        left_out.update(lost if has_baseline else lost[1:])
    # An evaluation without any verdict still needs a row.
    return left_out - {0} if len(left_out) == len(trajectories) else left_out


def _sequences(trajectory: Trajectory, settings: RowSettings) -> list[TokenSequence]:
    segments = [segment for segment in trajectory.rollout.segments if any(segment.mask)]
    if trajectory.rollout.is_lost or not segments:
        return [TokenSequence([], [], (), []).filled(settings.filler_token)]
    if settings.step_wise:
        sequences = [turn for segment in segments for turn in split(segment)]
    else:
        sequences = [trajectory.rollout.main]
    if settings.oldest is not None:
        sequences = [sequence.masked(older_than=settings.oldest) for sequence in sequences]
    is_masked = settings.apply_overlong_filtering and trajectory.stop_reason != "stop"
    return [sequence.masked() for sequence in sequences] if is_masked else sequences


def _per_token(row: Row) -> list[float]:
    return [0.0] * (len(row.sequence.completion) - 1) + [row.reward]


def _env_metrics(trajectory: Trajectory) -> dict[str, float]:
    return {**trajectory.rollout.metrics, _end(trajectory.rollout): 1.0}


def _end(rollout: Rollout) -> str:
    return f"{'end' if rollout.error is None else 'lost'}/{end_word(rollout)}"


def summarise(trajectories: Sequence[Trajectory], settings: RowSettings) -> dict[str, float]:
    """Return the batch's ``harbor/…`` metrics.

    SkyRL combines the metrics of several batches by their names: those with ``avg`` are averaged, others added up.
    """
    live = [trajectory.rollout for trajectory in trajectories if not trajectory.rollout.is_lost]
    untrained = 0 if settings.step_wise else sum(max(0, len(rollout.segments) - 1) for rollout in live)
    metrics = {
        "harbor/lost": float(len(trajectories) - len(live)),
        "harbor/failed_attempts": sum(item.rollout.metrics.get("infra/failed_attempts", 0.0) for item in trajectories),
        "harbor/untrained_segments": float(untrained),
    }
    if live:
        metrics["harbor/avg_reward"] = _mean([rollout.reward or 0.0 for rollout in live])
        metrics |= {f"harbor/avg_{name}": value for name, value in _averages(rollout.metrics for rollout in live)}
    ends = Counter(_end(trajectory.rollout) for trajectory in trajectories)
    return metrics | {f"harbor/{end}": float(count) for end, count in ends.items()}


def _averages(metrics: Iterable[Mapping[str, float]]) -> list[tuple[str, float]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for item in metrics:
        for name, value in item.items():
            values[name].append(float(value))
    return [(name, _mean(items)) for name, items in values.items()]
