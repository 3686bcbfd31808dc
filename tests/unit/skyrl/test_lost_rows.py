"""A lost episode moves no gradient: shown with SkyRL's own merging, batching and advantage estimators."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("skyrl") is None:
    pytest.skip('pip install "harbor-gym[skyrl]"', allow_module_level=True)

from harbor_gym import EndReason
from harbor_gym.adapters.skyrl.rows import RowSettings, Trajectory, make_columns, make_rows
from harbor_gym.errors import SandboxLostError
from harbor_gym.types import Rollout
from tests.helpers import skyrl as sky
from tests.helpers.sequences import of_mask

ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("compute_grpo_outcome_advantage", {}),
    "grpo without std": ("compute_grpo_outcome_advantage", {"grpo_norm_by_std": False}),
    "rloo": ("compute_rloo_outcome_advantage", {}),
    "maxrl": ("compute_maxrl_advantage", {}),
}
EXACT_WITH_A_ROW = ("grpo without std", "maxrl")
"""Estimators that a row at the group's mean does not touch."""

LOST = None


def trajectory(group: str, number: int, reward: float | None, end: EndReason = EndReason.COMPLETED) -> Trajectory:
    """Return an episode of two turns; one without a reward was lost in its second."""
    whole = of_mask([1, 2], [10 + number, 3, 4, 20 + number], [1, 0, 0, 1], [-0.5, 0.0, 0.0, -0.25])
    if reward is None:
        whole = of_mask([1, 2], [10 + number], [1], [-0.5])
    rollout = Rollout(
        task_name="task",
        trial_name=f"{group}-{number}",
        reward=reward,
        end_reason=EndReason.INFRASTRUCTURE_ERROR if reward is None else end,
        error=SandboxLostError("gone") if reward is None else None,
        segments=[whole],
    )
    return Trajectory(group, sky.TrajectoryID(group, number), rollout, 1.0, 0.5)


def batch(*groups: Sequence[float | None]) -> list[Trajectory]:
    return [
        trajectory(f"row{group}", number, reward)
        for group, rewards in enumerate(groups)
        for number, reward in enumerate(rewards)
    ]


def settings(*, step_wise: bool, **changed: Any) -> RowSettings:
    own = {"is_training": True, "zero_reward_on_non_stop": False, "apply_overlong_filtering": False, **changed}
    return RowSettings(step_wise=step_wise, filler_token=0, **own)


def output_of(trajectories: Sequence[Trajectory], *, step_wise: bool, **changed: Any) -> Any:
    own = settings(step_wise=step_wise, **changed)
    output: Any = make_columns(make_rows(trajectories, own), own, has_logprobs=True)
    sky.validate_generator_output(len(trajectories), output, step_wise=step_wise)
    if not step_wise:
        output["rewards"] = [
            [0.0] * (len(ids) - 1) + [reward]
            for ids, reward in zip(output["response_ids"], output["rewards"], strict=True)
        ]
    return output


def advantages(output: Any, estimator: str, *, index: Sequence[str] | None = None) -> dict[str, float]:
    """Return the advantage of each trajectory that is trained on, by SkyRL's estimator."""
    import numpy as np
    import torch

    width = max(map(len, output["rewards"]))
    rewards = torch.tensor([row + [0.0] * (width - len(row)) for row in output["rewards"]])
    masks = torch.tensor([[float(m) for m in row] + [0.0] * (width - len(row)) for row in output["loss_masks"]])
    ids = output["trajectory_ids"]
    groups = np.array([item.instance_id for item in ids] if index is None else index)
    name, settings = ESTIMATORS[estimator]
    found, _ = getattr(sky, name)(rewards.clone(), torch.ones_like(rewards), groups, **settings)
    weighted = (found * masks).abs().sum(dim=-1)
    signs = [row[0].item() for row in found]
    return {
        item.to_string(): sign
        for item, sign, weight, mask in zip(ids, signs, weighted, output["loss_masks"], strict=True)
        if any(mask) or weight
    }


def step_wise(trajectories: Sequence[Trajectory]) -> Any:
    return sky.merge_stepwise_output(output_of(trajectories, step_wise=True))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_step_wise_rows_give_the_advantages_of_a_batch_without_the_lost_ones(estimator: str) -> None:
    lost = batch([1.0, LOST, 0.0, 0.0], [LOST, 0.0, 1.0, LOST])
    alive = [item for item in lost if item.rollout.reward is not None]
    expected = advantages(step_wise(alive), estimator)
    assert len(expected) == 5
    assert any(abs(value) > 0.1 for value in expected.values())
    assert advantages(step_wise(lost), estimator) == expected


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_row_at_the_live_mean_is_exact_where_nothing_counts_rows(estimator: str) -> None:
    lost = batch([1.0, LOST, 0.0, 0.0])
    alive = [item for item in lost if item.rollout.reward is not None]
    expected = advantages(output_of(alive, step_wise=False), estimator)
    found = advantages(output_of(lost, step_wise=False), estimator)
    assert found.keys() == expected.keys()
    is_exact = found == pytest.approx(expected, abs=1e-6)
    assert is_exact == (estimator in EXACT_WITH_A_ROW)
    # Only a common factor is not exact: no sign and no order changes.
    ratios = [found[name] / expected[name] for name in expected]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), abs=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rewards", [[LOST, 1.0, LOST, LOST], [LOST, LOST]])
@pytest.mark.parametrize("is_step_wise", [True, False])
def test_a_group_with_fewer_than_two_verdicts_trains_nothing(
    rewards: list[float | None], estimator: str, is_step_wise: bool
) -> None:
    output = output_of(batch(rewards), step_wise=is_step_wise)
    output = sky.merge_stepwise_output(output) if is_step_wise else output
    assert list(advantages(output, estimator).values()) == pytest.approx([0.0] * sum(r is not None for r in rewards))


def test_every_prompt_keeps_a_row_so_that_skyrl_counts_its_batch() -> None:
    lost = step_wise(batch([1.0, LOST], [LOST, LOST], [0.0, 1.0]))
    uids = [item.instance_id for item in lost["trajectory_ids"]]
    boundaries = sky.compute_prompt_mini_batch_boundaries(uids, 1, 3, True, 2)
    assert boundaries == [(0, 2), (2, 3), (3, 5)]


def test_a_group_of_its_own_is_exact_for_the_estimators_and_refused_by_the_batch() -> None:
    lost = batch([1.0, LOST, 0.0, 0.0])
    output = output_of(lost, step_wise=False)
    own_ids = ["row0", "lost", "row0", "row0"]
    alive = [item for item in lost if item.rollout.reward is not None]
    for estimator in ESTIMATORS:
        expected = advantages(output_of(alive, step_wise=False), estimator)
        assert advantages(output, estimator, index=own_ids) == pytest.approx(expected)
    with pytest.raises(AssertionError):
        sky.compute_prompt_mini_batch_boundaries(sorted(own_ids), 1, 1, True, 4)


def test_an_evaluation_leaves_lost_episodes_out_of_its_mean() -> None:
    from skyrl.train.generators.utils import get_metrics_from_generator_output

    output = output_of(batch([1.0, LOST], [LOST], [0.0, 0.0]), step_wise=True, is_training=False)
    last = [number for number, is_last in enumerate(output["is_last_step"]) if is_last]
    view: Any = {"rewards": [output["rewards"][number] for number in last]}
    uids = [output["trajectory_ids"][number].instance_id for number in last]
    metrics = get_metrics_from_generator_output(view, uids)
    assert metrics["avg_score"] == pytest.approx(1 / 3)
    assert metrics["pass_at_n"] == 0.5
    only_lost = output_of(batch([LOST, LOST]), step_wise=True, is_training=False)
    assert only_lost["loss_masks"] == [[0]]


def test_a_lost_row_is_one_masked_token_at_the_live_mean() -> None:
    output = output_of(batch([1.0, LOST, 0.0, 0.0], [LOST, LOST]), step_wise=False)
    lost = [number for number, reason in enumerate(output["stop_reasons"]) if reason == "error"]
    assert lost == [1, 4, 5]
    assert [output["loss_masks"][number] for number in lost] == [[0]] * 3
    assert [output["rewards"][number] for number in lost] == [[pytest.approx(1 / 3)]] * 3


def test_truncated_episodes_follow_skyrls_settings() -> None:
    cut = trajectory("row0", 0, 1.0, EndReason.MAX_TURNS)
    played = [cut, trajectory("row0", 1, 1.0), trajectory("row0", 2, LOST)]
    output = output_of(played, step_wise=True, zero_reward_on_non_stop=True, apply_overlong_filtering=True)
    assert output["stop_reasons"] == ["stop", "length", "stop", "stop"]
    assert output["loss_masks"] == [[0], [0], [1], [1]]
    assert [row[-1] for row in output["rewards"]] == [0.0, 0.0, 0.0, 1.0]
    row = output_of(played, step_wise=False, zero_reward_on_non_stop=True)
    assert [item[-1] for item in row["rewards"]] == [0.0, 1.0, 0.5]


def test_step_wise_rows_merge_into_the_sequences_of_the_episodes() -> None:
    played = batch([1.0, 0.0])
    rows, merged = output_of(played, step_wise=True), step_wise(played)
    assert (len(rows["response_ids"]), len(merged["response_ids"])) == (4, 2)
    whole = output_of(played, step_wise=False)
    for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards"):
        assert merged[name] == whole[name], name
