"""Estimates with numbers that were worked out elsewhere, and intervals that can be wrong."""

import itertools
import math
import random
from statistics import NormalDist, fmean

import pytest

from harbor_gym.errors import UsageError
from harbor_gym.evaluation import bootstrap, pass_at_k, wilson
from harbor_gym.evaluation.statistics import RESAMPLES, Estimate, mean_estimate, pass_estimate

_draw = random.Random(7)
UNLIKE = [_draw.random() for _ in range(9)]
"""Nine values without ties: every resampling has ends of its own."""


def test_pass_at_k_is_the_share_of_all_samples_of_k_that_hold_a_solved_one() -> None:
    for episodes in range(1, 7):
        for solved in range(episodes + 1):
            outcomes = [True] * solved + [False] * (episodes - solved)
            for k in range(1, episodes + 1):
                exact = fmean(any(draw) for draw in itertools.combinations(outcomes, k))
                assert pass_at_k(episodes, solved, k) == pytest.approx(exact)


@pytest.mark.parametrize(("episodes", "solved", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_counts_that_contradict_each_other_are_refused(episodes: int, solved: int, k: int) -> None:
    with pytest.raises(UsageError, match=f"pass@{k} "):
        pass_at_k(episodes, solved, k)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 2, 0.0945, 0.9055), (0, 1, 0.0, 0.7935)],
)
def test_wilsons_interval_is_that_of_the_literature(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_follows_the_confidence_and_needs_a_trial() -> None:
    z = NormalDist().inv_cdf(0.75)
    half = z * math.sqrt(0.25 / 100 + z * z / 4e4) / (1 + z * z / 100)
    assert wilson(50, 100, confidence=0.5) == pytest.approx((0.5 - half, 0.5 + half))
    with pytest.raises(UsageError, match="at least one trial"):
        wilson(0, 0)


def test_the_seed_alone_decides_the_resampling() -> None:
    assert bootstrap(UNLIKE, seed=3) == bootstrap(UNLIKE, seed=3)
    assert len({bootstrap(UNLIKE, seed=seed) for seed in range(5)}) == 5
    assert bootstrap(UNLIKE) == bootstrap(UNLIKE, seed=0)


def test_the_interval_cuts_the_same_share_from_either_end() -> None:
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(UNLIKE, k=9)) for _ in range(RESAMPLES))
    low, high = bootstrap(UNLIKE)
    below, above = sum(mean < low for mean in means), sum(mean > high for mean in means)
    assert below == pytest.approx(0.025 * RESAMPLES, abs=2)
    assert above == pytest.approx(0.025 * RESAMPLES, abs=2)
    low, high = bootstrap(UNLIKE, confidence=0.5)
    assert sum(low <= mean <= high for mean in means) == pytest.approx(RESAMPLES / 2, abs=3)


def test_more_values_make_the_interval_narrower() -> None:
    few, many = bootstrap([0.0, 1.0, 1.0, 0.5]), bootstrap([0.0, 1.0, 1.0, 0.5] * 16)
    assert few[0] < many[0] < 0.625 < many[1] < few[1]
    with pytest.raises(UsageError, match="at least one value"):
        bootstrap([])


def test_pass_at_k_of_several_tasks_is_their_mean() -> None:
    estimate = pass_estimate([(4, 2), (4, 0), (1, 1)], 2)
    values = [pass_at_k(4, 2, 2), 0.0]
    assert estimate == Estimate(fmean(values), *bootstrap(values)), "one episode gives no estimate of two attempts"
    assert pass_estimate([(1, 1), (0, 0)], 2) is None
    assert pass_estimate([], 1) is None


def test_pass_at_k_counts_tasks_with_just_k_episodes() -> None:
    estimate = pass_estimate([(2, 1), (1, 0)], 2)
    assert estimate is not None
    assert estimate.value == 1.0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k_of_one_task_has_wilsons_interval(k: int) -> None:
    estimate = pass_estimate([(8, 2)], k)
    low, high = wilson(2, 8)
    assert estimate is not None
    assert estimate.value == pytest.approx(pass_at_k(8, 2, k))
    assert (estimate.low, estimate.high) == pytest.approx((1 - (1 - low) ** k, 1 - (1 - high) ** k))


def test_the_interval_always_holds_its_estimate() -> None:
    for episodes in range(1, 7):
        for solved, k in itertools.product(range(episodes + 1), range(1, episodes + 1)):
            estimate = pass_estimate([(episodes, solved)], k)
            assert estimate is not None
            assert estimate.low <= estimate.value <= estimate.high


def test_rewards_of_one_task_that_are_all_or_nothing_have_wilsons_interval() -> None:
    assert mean_estimate([[1.0, 1.0, 1.0]]) == Estimate(1.0, *wilson(3, 3)), "three of three are not certain"
    assert mean_estimate([[0.0, 1.0], []]) == Estimate(0.5, *wilson(1, 2)), "a task without a reward does not count"


def test_other_rewards_of_one_task_are_resampled() -> None:
    rewards = [0.0, 1.0, 0.5]
    assert mean_estimate([rewards]) == Estimate(0.5, *bootstrap(rewards))
    assert mean_estimate([[], []]) is None


def test_tasks_count_the_same_however_many_episodes_they_have() -> None:
    estimate = mean_estimate([[1.0, 1.0, 1.0, 1.0], [0.0]])
    assert estimate == Estimate(0.5, *bootstrap([1.0, 0.0])), "tasks are resampled, also where their means are 0 and 1"
