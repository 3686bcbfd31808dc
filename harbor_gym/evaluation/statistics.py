"""Estimates of pass@k and mean reward, with confidence intervals.

One method gives each interval: Wilson's score interval of a proportion, with the effective number of trials where tasks
differ (Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of Positive Counts Estimated
from Survey Data, Survey Methodology 24, 1998; with Wilson's interval: Franco et al., Comparative Study of Confidence
Intervals for Proportions in Complex Sample Surveys, Journal of Survey Statistics and Methodology 7, 2019).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from harbor_gym.errors import UsageError

CONFIDENCE = 0.95


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
    return _score_interval(successes / trials, trials, confidence)


def _score_interval(share: float, trials: float, confidence: float) -> tuple[float, float]:
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    centre = share + z2 / (2 * trials)
    spread = math.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials * trials)))
    scale = 1 + z2 / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def interval(values: Sequence[float], trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return an interval of the mean of values between 0 and 1; it has a width also where all are the same.

    It is Wilson's. Values that are all 0 or 1 are its trials. Else the number of trials is that of which the mean would
    have the variance that the values show, less what is lost by estimating that variance from so few of them.

    Args:
        values: One per independent unit, from 0 to 1: the mean of a task's episodes, or an episode's reward.
        trials: The greatest number of trials that they can stand for: the number of episodes that were solved or not.
        confidence: Coverage of the interval.

    Raises:
        UsageError: There are no values.
    """
    if not values:
        raise UsageError("an interval needs at least one value")
    count, mean = len(values), fmean(values)
    if set(values) <= {0.0, 1.0}:
        return _score_interval(mean, count, confidence)
    squares = math.fsum((value - mean) ** 2 for value in values)
    effective = float(trials)
    if count > 1 and squares > 0:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        lost = (z / _student_quantile(count - 1, confidence)) ** 2
        effective = min(effective, lost * mean * (1 - mean) * count * (count - 1) / squares)
    return _score_interval(mean, effective, confidence)


def _student_quantile(freedom: int, confidence: float) -> float:
    """Return the two-sided quantile of Student's t, to less than one percent for a confidence of up to 0.95.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3, 26.7.4 and 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence * confidence))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def pass_estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """Return the mean pass@k over tasks, with its interval.

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
        return _around(value, interval(values, sum(episodes // k for episodes, _ in usable)))
    episodes, solved = usable[0]
    low, high = wilson(solved, episodes)
    # 1 - (1 - p)^k is monotone in p, so it maps the interval's ends.
    return _around(value, (1 - (1 - low) ** k, 1 - (1 - high) ** k))


def mean_estimate(rewards: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean over tasks of their mean reward, with its interval: over tasks, for a single one over episodes.

    Rewards below 0 or above 1 stretch the range that the interval's method works in.

    Args:
        rewards: The rewards of each task's episodes. Tasks without rewards don't count.

    Returns:
        None if there is no reward at all.
    """
    usable = [item for item in rewards if item]
    if not usable:
        return None
    every = [reward for item in usable for reward in item]
    units = [fmean(item) for item in usable] if len(usable) > 1 else usable[0]
    least, most = min(0.0, *every), max(1.0, *every)
    ends = interval([(unit - least) / (most - least) for unit in units], len(every))
    low, high = (least + end * (most - least) for end in ends)
    return _around(fmean(units), (low, high))


def _around(value: float, ends: tuple[float, float]) -> Estimate:
    low, high = ends
    return Estimate(value, min(low, value), max(high, value))
