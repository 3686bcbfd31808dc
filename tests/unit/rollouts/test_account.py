"""The pay of transitions sums to the episode's reward, after any steps and any end."""

import math
from pathlib import Path

import pytest
from harbor.models.task.task import Task
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym import EndReason
from harbor_gym.episode.grading.account import RewardAccount, step_share
from harbor_gym.episode.grading.rewards import reward_function
from harbor_gym.errors import VerifierError
from tests.helpers.sandboxes.fake_episodes import fake_config

REWARDS = st.floats(-10, 10)
REASONS = st.sampled_from([reason for reason in EndReason if reason is not EndReason.INFRASTRUCTURE_ERROR])


@given(
    steps=st.lists(REWARDS, max_size=6),
    share=st.sampled_from([0.0, 1 / 2, 1 / 3, 1 / 7]),
    is_zero_on_limit=st.booleans(),
    rewards=st.dictionaries(st.just("reward"), REWARDS, min_size=1),
    reason=REASONS,
)
def test_the_pay_sums_to_the_reward(
    steps: list[float], share: float, is_zero_on_limit: bool, rewards: dict[str, float], reason: EndReason
) -> None:
    account = RewardAccount(reward_function(), is_zero_on_limit, share)
    paid = [account.pay_step({"reward": step}) for step in steps]
    reward = account.settle(rewards, reason)
    assert math.isclose(math.fsum([*paid, reward - account.paid]), reward, abs_tol=1e-12)
    is_capped = is_zero_on_limit and reason.is_truncation
    assert reward == (min(rewards["reward"], 0.0) if is_capped else rewards["reward"])


def test_a_broken_sandbox_is_worth_nothing_and_takes_back_what_was_paid() -> None:
    account = RewardAccount(reward_function(), step_share=0.5)
    account.pay_step({"reward": 1.0})
    assert (account.settle({}, EndReason.SANDBOX_BROKEN), account.paid) == (0.0, 0.5)


def test_a_verdict_without_the_scalar_is_none() -> None:
    with pytest.raises(VerifierError, match="no reward named"):
        RewardAccount(reward_function("speed")).settle({"reward": 1.0}, EndReason.COMPLETED)
    with pytest.raises(VerifierError, match="no reward named"):
        RewardAccount(reward_function()).settle({}, EndReason.COMPLETED)


@pytest.mark.parametrize(
    ("strategy", "steps", "share"),
    [("mean", 4, 0.25), ("mean", 1, 1.0), ("final", 4, 0.0), ("final", 1, 0.0), ("mean", 0, 0.0)],
)
def test_a_steps_share_is_the_strategys(tmp_path: Path, strategy: str, steps: int, share: float) -> None:
    config = fake_config(tmp_path / "task", steps=steps)
    toml = config.task_dir / "task.toml"
    toml.write_text(f'multi_step_reward_strategy = "{strategy}"\n{toml.read_text()}')
    assert step_share(Task(config.task_dir)) == share
