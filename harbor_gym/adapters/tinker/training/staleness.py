"""Metrics of how many steps a batch's tokens are behind the weights that are trained on them."""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

from harbor_gym._runtime.imports import replaced_names


@contextlib.contextmanager
def token_staleness() -> Generator[None]:
    """Make the cookbook's loop report :func:`tokens_behind` for each batch during the block.

    This concerns ``async_config`` and ``stream_minibatch_config``; other batches have no older tokens.
    """
    from tinker_cookbook.rl import train

    loop: Any = train
    compute = loop.compute_sampling_client_metrics
    batch: list[Any] = []

    def compute_and_keep(groups: list[Any]) -> dict[str, Any]:
        batch[:] = groups
        return compute(groups)

    def counting(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def step_and_count(config: Any, i_batch: int, *args: Any) -> Any:
            result = await step(config, i_batch, *args)
            if result is not None:
                result[1].update(tokens_behind(batch, i_batch))
            batch.clear()
            return result

        return step_and_count

    with replaced_names(
        train,
        compute_sampling_client_metrics=compute_and_keep,
        do_train_step_and_get_sampling_client=counting(loop.do_train_step_and_get_sampling_client),
        do_train_step_streaming_and_get_sampling_client=counting(loop.do_train_step_streaming_and_get_sampling_client),
    ):
        yield


def tokens_behind(groups: Iterable[Any], i_batch: int) -> dict[str, int]:
    """Return ``rollout/tokens_N_behind``: the number of a batch's sampled tokens whose weights are N steps older.

    Args:
        groups: The cookbook's ``WrappedTrajectoryGroup`` s, each sampled by one client and so at one step.
        i_batch: The step that trains on them.
    """
    counts = Counter[int]()
    for group in groups:
        trajectories = group.trajectory_group.trajectories_G
        counts[i_batch - group.sampling_client_step] += sum(
            len(transition.ac.tokens) for trajectory in trajectories for transition in trajectory.transitions
        )
    return {f"rollout/tokens_{age}_behind": count for age, count in sorted(counts.items())}
