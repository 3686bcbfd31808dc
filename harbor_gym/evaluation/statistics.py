"""Estimates of pass@k and mean reward, with confidence intervals."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from harbor_gym.errors import UsageError

CONFIDENCE = 0.95
RESAMPLES = 4000
"""Bootstrap samples; their quantiles vary by about 0.003 of the spread."""


@dataclass(frozen=True)
class Estimate:
    """A value with a confidence interval."""

    value: float
    """The estimate."""

    low: float
    """Lower end of the interval."""

    high: float
    """Upper end of the interval."""


def pass_at_k(episodes: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` episodes solves the task.

    Args:
        episodes: Number of graded episodes.
        solved: Number of episodes that solved the task.
        k: At most ``episodes``.

    Raises:
        UsageError: There are fewer than ``k`` episodes, or the counts contradict each other.

    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    if not (1 <= k <= episodes and 0 <= solved <= episodes):
        raise UsageError(f"pass@{k} can't be estimated from {solved} solved of {episodes} episodes")
    return 1.0 - math.comb(episodes - solved, k) / math.comb(episodes, k)


def wilson(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is sound also for few trials and at 0 and 1.

    Raises:
        UsageError: There are no trials.
    """
    if trials < 1:
        raise UsageError("an interval needs at least one trial")
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    share = successes / trials
    centre = share + z2 / (2 * trials)
    spread = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials * trials)))
    scale = 1 + z2 / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def bootstrap(values: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return a percentile bootstrap interval of the mean, the same for the same values and seed.

    Args:
        values: One per independent unit: a task's mean, or an episode's reward.
        seed: Seed of the resampling.
        confidence: Coverage of the interval.

    Raises:
        UsageError: There are no values.
    """
    if not values:
        raise UsageError("an interval needs at least one value")
    draw = random.Random(seed)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = (1 - confidence) / 2
    return means[int(cut * (RESAMPLES - 1))], means[math.ceil((1 - cut) * (RESAMPLES - 1))]


def pass_estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """Return the mean pass@k over tasks, with a bootstrap interval over tasks, or Wilson's for a single task.

    Args:
        counts: Episodes and solved episodes of each task. Tasks with fewer than ``k`` episodes don't count.
        k: The k of pass@k.

    Returns:
        None if no task has ``k`` episodes.
    """
    usable = [(episodes, solved) for episodes, solved in counts if episodes >= k]
    if not usable:
        return None
    values = [pass_at_k(episodes, solved, k) for episodes, solved in usable]
    value = fmean(values)
    if len(usable) > 1:
        return Estimate(value, *bootstrap(values))
    episodes, solved = usable[0]
    # 1 - (1 - p)^k is monotone in p, so it maps the interval's ends.
    low, high = (1 - (1 - share) ** k for share in wilson(solved, episodes))
    return Estimate(value, min(low, value), max(high, value))


def mean_estimate(rewards: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean over tasks of their mean reward, with a bootstrap interval over tasks.

    For a single task the interval is over its episodes; if all rewards are 0 or 1, it is Wilson's.

    Args:
        rewards: The rewards of each task's episodes. Tasks without rewards don't count.

    Returns:
        None if there is no reward at all.
    """
    usable = [item for item in rewards if item]
    if not usable:
        return None
    units = [fmean(item) for item in usable] if len(usable) > 1 else usable[0]
    if len(usable) == 1 and set(units) <= {0.0, 1.0}:  # a bootstrap of equal rewards would have an interval of width 0
        return Estimate(fmean(units), *wilson(round(sum(units)), len(units)))
    return Estimate(fmean(units), *bootstrap(units))
