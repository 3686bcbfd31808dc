"""Tokens by the age of the weights that sampled them, in both of the cookbook's loops that may have old ones."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.cookbook_loop import TURNS, Service, trajectory

pytestmark = pytest.mark.tinker

EACH = sum(len(sampled) for _, sampled in TURNS)
STEP = 3


def groups() -> list[Any]:
    """Return three groups of two episodes, of weights that are 1, 0 and 1 steps old at ``STEP``."""
    from tinker_cookbook.rl.train import WrappedTrajectoryGroup
    from tinker_cookbook.rl.types import TrajectoryGroup

    builder: Any = SimpleNamespace(logging_tags=lambda: ["task"])
    timing = {"time/trajectory_group_worker_loop/total": 1.0}
    return [
        WrappedTrajectoryGroup(
            trajectory_group=TrajectoryGroup([trajectory(), trajectory()], [1.0, 0.0], [{}, {}]),
            env_group_builder=builder,
            sampling_client_step=step,
            metrics=timing,
        )
        for step in (2, STEP, 2)
    ]


def config(**own: Any) -> Any:
    kl = {"kl_penalty_coef": 0.0, "kl_discount_factor": 0.0, "compute_post_kl": False}
    return SimpleNamespace(
        **kl, num_substeps=1, learning_rate=1e-3, loss_fn="importance_sampling", loss_fn_config=None, **own
    )


def _never(step: int) -> bool:
    return False


async def train_on(*, is_streaming: bool, batch: list[Any], checkpoints: Any = None, **settings: Any) -> dict[str, Any]:
    """Return the metrics of the cookbook's step on a batch."""
    from tinker_cookbook.rl import train

    loop: Any = train
    service: Any = Service()
    checkpoints = checkpoints or SimpleNamespace(should_save_periodic=_never)
    rest = (service, checkpoints, None, byte_level_tokenizer())
    if is_streaming:
        queue: Any = asyncio.Queue()
        for group in batch:
            queue.put_nowait(group)
        parts = SimpleNamespace(groups_per_batch=len(batch), num_minibatches=1)
        own = config(stream_minibatch_config=parts, **settings)
        result = await loop.do_train_step_streaming_and_get_sampling_client(own, STEP, queue, *rest)
        assert result is not None
        return result[1]
    metrics = loop.compute_sampling_client_metrics(batch)
    builders, played = [group.env_group_builder for group in batch], [group.trajectory_group for group in batch]
    _, own = await loop.do_train_step_and_get_sampling_client(config(**settings), STEP, *rest, builders, played)
    return metrics | own


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_tokens_are_counted_by_the_age_of_their_weights(*, is_streaming: bool) -> None:
    from harbor_gym.adapters.tinker.training.staleness import token_staleness

    with token_staleness():
        metrics = await train_on(is_streaming=is_streaming, batch=groups())
        again = await train_on(is_streaming=is_streaming, batch=groups()[1:2])
    assert metrics["rollout/tokens_0_behind"] == 2 * EACH
    assert metrics["rollout/tokens_1_behind"] == 4 * EACH
    assert {name: count for name, count in again.items() if "behind" in name} == {"rollout/tokens_0_behind": 2 * EACH}
    assert metrics["sampling_client/step_min"] == 2
    without = await train_on(is_streaming=is_streaming, batch=groups())
    assert not [name for name in without if "behind" in name], "the loop is its own again"
