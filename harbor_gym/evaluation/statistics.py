"""Estimates and their intervals."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from harbor_gym.errors import UsageError

CONFIDENCE = 0.95
RESAMPLES = 4000
"""Bootstrap samples; their quantiles then wobble by about 0.003 of the spread."""


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
        episodes: Episodes that were played.
        solved: Those that solved it.
        k: At most ``episodes``.

    Raises:
        UsageError: There are fewer than ``k`` episodes, or the counts contradict each other.

    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    if not (1 <= k <= episodes and 0 <= solved <= episodes):
        raise UsageError(f"pass@{k} can't be estimated from {solved} solved of {episodes} episodes")
    return 1.0 - math.comb(episodes - solved, k) / math.comb(episodes, k)


def wilson(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's score interval of a share, which is sound for few trials and at 0 and 1 too.

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
        values: One for each independent unit: a task's own mean, or an episode's reward.
        seed: Decides the resampling.
        confidence: Share of the interval.

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
    """Return pass@k over tasks: their mean, with the tasks resampled; of one task by Wilson's interval.

    Args:
        counts: Episodes and solved ones of each task. Tasks with fewer than ``k`` episodes don't count.
        k: Attempts.

    Returns:
        None where no task has ``k`` episodes.
    """
    usable = [(episodes, solved) for episodes, solved in counts if episodes >= k]
    if not usable:
        return None
    values = [pass_at_k(episodes, solved, k) for episodes, solved in usable]
    value = fmean(values)
    if len(usable) > 1:
        return Estimate(value, *bootstrap(values))
    episodes, solved = usable[0]
    # pass@k rises with pass@1, so the interval's ends may be taken through 1 - (1 - p)^k.
    low, high = (1 - (1 - share) ** k for share in wilson(solved, episodes))
    return Estimate(value, min(low, value), max(high, value))


def mean_estimate(rewards: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean over tasks of their mean reward, with the tasks resampled; of one task with its episodes
    resampled, or by Wilson's interval where they are all 0 or 1.

    Args:
        rewards: The rewards of each task's episodes. Tasks without one don't count.

    Returns:
        None where there is no reward at all.
    """
    usable = [item for item in rewards if item]
    if not usable:
        return None
    units = [fmean(item) for item in usable] if len(usable) > 1 else usable[0]
    if len(usable) == 1 and set(units) <= {0.0, 1.0}:  # resampling n equal episodes would claim to be certain
        return Estimate(fmean(units), *wilson(round(sum(units)), len(units)))
    return Estimate(fmean(units), *bootstrap(units))
