"""Estimates with numbers that were worked out elsewhere, and intervals that can be wrong."""

import itertools
import math
import random
from statistics import NormalDist, fmean

import pytest

from harbor_gym.errors import UsageError
from harbor_gym.evaluation import interval, pass_at_k, wilson
from harbor_gym.evaluation.statistics import (
    Estimate,
    _student_quantile,  # pyright: ignore[reportPrivateUsage]  # against tables
    mean_estimate,
    pass_estimate,
)


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


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (29, 2.0452), (120, 1.9799)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert _student_quantile(freedom, 0.95) == pytest.approx(quantile, rel=0.005)


def test_values_of_0_and_1_have_wilsons_interval() -> None:
    assert interval([1.0, 1.0, 1.0], 3) == wilson(3, 3)
    assert interval([1.0, 0.0], 9) == wilson(1, 2), "two tasks, however many episodes agree within each"
    with pytest.raises(UsageError, match="at least one value"):
        interval([], 1)


def test_no_interval_has_a_width_of_0() -> None:
    for values in ([0.5], [0.5, 0.5], [1.0], [1.0, 1.0], [0.0] * 40, [0.25] * 40):
        low, high = interval(values, len(values))
        assert low <= fmean(values) <= high
        assert high - low > 0.05


def test_what_differs_between_tasks_makes_the_interval_wider_and_more_tasks_narrower() -> None:
    alike, unlike = interval([0.5, 0.6] * 5, 80), interval([0.1, 1.0] * 5, 80)
    assert alike[1] - alike[0] < unlike[1] - unlike[0]
    few, many = interval([0.0, 1.0, 1.0, 0.5], 8), interval([0.0, 1.0, 1.0, 0.5] * 16, 128)
    assert few[0] < many[0] < 0.625 < many[1] < few[1]
    half = interval([0.0, 1.0, 1.0, 0.5] * 16, 128, confidence=0.5)
    assert many[0] < half[0] < half[1] < many[1]


DRAWS = 400


@pytest.mark.parametrize("tasks", [2, 5, 10])
@pytest.mark.parametrize("episodes", [1, 4, 16])
@pytest.mark.parametrize("skills", [(0.3, 0.3), (1.0, 1.0), (0.3, 1.5), (9.0, 1.0)])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(
    tasks: int, episodes: int, skills: tuple[float, float]
) -> None:
    """Tasks are drawn from a population whose difficulties differ, then episodes of each."""
    draw = random.Random(f"{tasks} {episodes} {skills}")
    truth, held = skills[0] / sum(skills), 0
    for _ in range(DRAWS):
        rates = [draw.betavariate(*skills) for _ in range(tasks)]
        rewards = [[float(draw.random() < rate) for _ in range(episodes)] for rate in rates]
        estimate = mean_estimate(rewards)
        assert estimate is not None
        held += estimate.low <= truth <= estimate.high
    assert held >= 0.9 * DRAWS, "0.95, less what 400 draws may miss and few tasks can show"


def test_two_tasks_that_were_solved_once_each_are_not_certain() -> None:
    solved = mean_estimate([[1.0], [1.0]])
    assert solved == Estimate(1.0, *wilson(2, 2))
    assert pass_estimate([(1, 1), (1, 1)], 1) == solved
    unsolved = mean_estimate([[0.0], [0.0]])
    assert unsolved == Estimate(0.0, *wilson(0, 2))


def test_rewards_beyond_0_and_1_stretch_the_range() -> None:
    estimate = mean_estimate([[-1.0, 3.0]])
    assert estimate is not None
    assert estimate.low == pytest.approx(-1 + 4 * wilson(1, 2)[0])
    assert estimate.high == pytest.approx(-1 + 4 * wilson(1, 2)[1])


def test_pass_at_k_of_several_tasks_is_their_mean() -> None:
    estimate = pass_estimate([(4, 2), (4, 0), (1, 1)], 2)
    values = [pass_at_k(4, 2, 2), 0.0]
    assert estimate == Estimate(fmean(values), *interval(values, 4)), "one episode gives no estimate of two attempts"
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


def test_other_rewards_of_one_task_have_the_interval_of_its_episodes() -> None:
    rewards = [0.0, 1.0, 0.5]
    assert mean_estimate([rewards]) == Estimate(0.5, *interval(rewards, 3))
    assert mean_estimate([[], []]) is None


def test_tasks_count_the_same_however_many_episodes_they_have() -> None:
    estimate = mean_estimate([[1.0, 1.0, 1.0, 1.0], [0.0]])
    assert estimate == Estimate(0.5, *wilson(1, 2)), "the tasks are the sample, also where their means are 0 and 1"
