"""The loss on observation tokens: on exactly those, in one pass with the policy's, and nothing where it is 0."""

import pickle
from typing import Any

import pytest

from harbor_gym import Sample, merge
from harbor_gym.types import TokenRole
from tests.helpers.cookbook_loop import TURNS, Service, trajectory

pytestmark = pytest.mark.tinker

WEIGHT = 0.05


async def step(weight: float, *, advantage: float) -> tuple[Service, dict[str, Any]]:
    from tinker_cookbook.rl import train as loop
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    from harbor_gym.adapters.tinker.training.observation_loss import observation_loss

    service: Any = Service()
    metrics: dict[str, Any] = {}
    before = loop.train_step
    with observation_loss(weight):
        await loop.train_step(
            data_D=trajectory_to_data(trajectory(), advantage),
            training_client=service,
            learning_rate=1e-3,
            num_substeps=1,
            loss_fn="importance_sampling",
            metrics=metrics,
        )
    assert loop.train_step is before
    return service, metrics


def columns(datum: Any, *names: str) -> list[list[float]]:
    return [datum.loss_fn_inputs[name].to_torch().tolist() for name in names]


async def test_the_weight_is_the_advantage_of_observation_tokens_alone() -> None:
    service, metrics = await step(WEIGHT, advantage=2.0)
    assert [name for name, _ in service.calls] == ["forward", "forward_backward", "optim_step"]
    sequences = merge((prompt, Sample(sampled, [-float(token) for token in sampled])) for prompt, sampled in TURNS)
    advantage = {TokenRole.PROMPT: 0.0, TokenRole.OBSERVATION: WEIGHT, TokenRole.SAMPLED: 2.0}
    for datum, sequence in zip(service.calls[1][1], sequences, strict=True):
        targets, advantages, logprobs = columns(datum, "target_tokens", "advantages", "logprobs")
        roles = sequence.token_roles[1:]
        assert targets == sequence.token_ids[1:]
        assert advantages == pytest.approx([advantage[role] for role in roles])
        # Observations have the trainer's own, so that their ratio is 1; sampled tokens have the sampler's.
        shown = [
            0.0 if role is TokenRole.PROMPT else -float(target) for role, target in zip(roles, targets, strict=True)
        ]
        assert logprobs == shown
        assert "mask" not in datum.loss_fn_inputs
    assert metrics["optim/observation_loss"] == pytest.approx((6 + 7 + 12) / 3)


async def test_a_group_of_one_reward_still_learns_what_it_was_shown() -> None:
    service, _ = await step(WEIGHT, advantage=0.0)
    assert sum(sum(columns(datum, "advantages")[0]) for datum in service.calls[1][1]) == pytest.approx(3 * WEIGHT)


async def test_a_weight_of_0_is_the_loop_as_it_was() -> None:
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    from harbor_gym.adapters.tinker.training.observation_loss import without_mask

    service, metrics = await step(0.0, advantage=2.0)
    assert [name for name, _ in service.calls] == ["forward_backward", "optim_step"]
    plain = [pickle.dumps(without_mask(datum)) for datum in trajectory_to_data(trajectory(), 2.0)]
    assert [pickle.dumps(datum) for datum in service.calls[0][1]] == plain
    assert not metrics
