"""The scalar: by name and never by place, finite, and a wrong choice is named before it trains anybody."""

import functools
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.config import RewardFunction
from harbor_gym.episode.grading.rewards import reward_function, scalar_reward
from harbor_gym.errors import UsageError, VerifierError
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config

BOTH = {"speed": 0.25, "reward": 1.0}
HERE = __name__

not_a_function = 7


def as_many(rewards: Mapping[str, float]) -> int:
    return len(rewards)


def endless(rewards: Mapping[str, float]) -> float:
    return rewards["reward"]


@pytest.mark.parametrize(
    ("rewards", "key", "expected"),
    [
        (BOTH, None, 1.0),
        (BOTH, "speed", 0.25),
        ({"speed": 0.25}, None, 0.25),
        ({"reward": 0.5}, None, 0.5),
        ({"reward": 1, "a": 0}, None, 1.0),
    ],
)
def test_the_scalar_is_found_by_name(rewards: dict[str, float], key: str | None, expected: float) -> None:
    assert scalar_reward(rewards, key) == expected
    assert isinstance(scalar_reward(rewards, key), float)
    assert reward_function(key)(rewards) == expected


@pytest.mark.parametrize(
    ("rewards", "key", "words"),
    [
        ({"speed": 0.25, "size": 1.0}, None, r"named 'reward' \(it wrote: size, speed\)"),
        ({}, None, r"named 'reward' \(it wrote: none\)"),
        (BOTH, "size", r"named 'size' \(it wrote: reward, speed\)"),
    ],
)
def test_a_scalar_that_is_not_there_is_no_reward(rewards: dict[str, float], key: str | None, words: str) -> None:
    with pytest.raises(VerifierError, match=words):
        reward_function(key)(rewards)


@pytest.mark.parametrize(
    ("function", "expected"),
    [("mean", 0.625), ("min", 0.25), ("max", 1.0), ("sum", 1.25), (f"{HERE}:as_many", 2.0)],
)
def test_the_scalar_is_made_of_all(function: str, expected: float) -> None:
    made = reward_function(function=function)(BOTH)
    assert (made, type(made)) == (expected, float)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_function_that_returns_no_finite_number_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match=rf"'{HERE}:endless' returned {value} for"):
        reward_function(function=f"{HERE}:endless")({"reward": value})


def test_a_function_of_nothing_has_no_verdict() -> None:
    with pytest.raises(VerifierError, match="no reward at all, and reward_function 'sum' needs one"):
        reward_function(function="sum")({})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("median", "known: mean, min, max, sum"),
        (f"{HERE}:not_a_function", "which can.t be called"),
        (f"{HERE}:absent", "can't be imported"),
        ("no_such_module:function", "can't be imported"),
        (f"{HERE}:as_many:again", "can't be imported"),
    ],
)
def test_a_function_that_is_none_is_named_at_once(function: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        reward_function(function=function)


async def later(rewards: Mapping[str, float]) -> float:
    return rewards["reward"]


def of_two(speed: float, reward: float) -> float:
    return speed + reward


def quarter(rewards: Mapping[str, float]) -> float:
    return rewards["reward"] / 4


@pytest.mark.parametrize("function", [as_many, functools.partial(as_many), f"{HERE}:as_many"])
def test_a_function_may_be_given_itself(function: str | RewardFunction) -> None:
    assert reward_function(function=function)(BOTH) == 2.0


@pytest.mark.parametrize("function", [f"{HERE}:later", later, lambda: 1.0, of_two])
def test_a_function_that_can_not_be_called_with_the_rewards_says_what_it_needs(function: Any) -> None:
    with pytest.raises(UsageError, match=rf"'{HERE}:.*' can't be used: it has to be a function, .* finite number$"):
        reward_function(function=function)


@pytest.mark.parametrize("value", [None, "many", [1.0]])
def test_a_function_that_returns_no_number_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"<lambda>' returned .* for \{'reward': 1.0\}: no finite number"):
        reward_function(function=lambda rewards: value)({"reward": 1.0})


def test_a_configuration_keeps_the_function_and_its_json_has_the_name() -> None:
    config = TerminalEnvConfig(task_dir="task:devops_task", reward_function=as_many)
    assert config.reward_function is as_many
    written = config.model_dump(mode="json")
    assert written["reward_function"] == f"{HERE}:as_many"
    assert reward_function(function=TerminalEnvConfig.model_validate(written).reward_function)(BOTH) == 2.0
    assert pickle.loads(pickle.dumps(config)) == config


async def test_an_episode_is_paid_by_a_plain_function(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", reward_function=quarter)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        assert (await env.step(COMPLETE)).reward == 0.25


def test_a_key_and_a_function_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="'speed' and reward_function 'mean' exclude each other"):
        reward_function("speed", "mean")
