"""A loss on observation tokens, added to the policy's loss (ECHO, arXiv 2605.24517), in the cookbook's loop."""

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tinker
from tinker_cookbook.rl import train as loop

from harbor_gym._runtime.imports import replaced_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

METRIC = "optim/observation_loss"
"""Mean cross-entropy of a batch's observation tokens before its step, in nats per token."""


@contextlib.contextmanager
def observation_loss(weight: float) -> Generator[None]:
    """Add the cross-entropy of the observation tokens, times ``weight``, to each step of the cookbook's loop.

    The policy loss of a token has this gradient if its advantage is ``weight`` and its log-probability is the
    trainer's own. So, after a forward pass for those log-probabilities, both losses take one pass and share their
    normalisation.
    """
    if weight == 0:
        yield
        return
    train_step = loop.train_step

    async def step(
        data_D: list[tinker.Datum],
        training_client: tinker.TrainingClient,
        *,
        loss_fn: Literal["importance_sampling", "ppo", "cispo"],
        metrics: dict[str, Any],
        **settings: Any,
    ) -> Any:
        shown = [observation_tokens(datum) for datum in data_D]
        if not any(places.any() for places in shown):
            return await train_step(data_D, training_client, loss_fn=loss_fn, metrics=metrics, **settings)
        bare = [without_mask(datum) for datum in data_D]
        outputs = (await training_client.forward(bare, loss_fn=loss_fn).result_async()).loss_fn_outputs
        known = [output["logprobs"].to_numpy() for output in outputs]
        metrics[METRIC] = -float(np.concatenate(known)[np.concatenate(shown)].mean())
        weighted = [with_observations(datum, logprobs, weight) for datum, logprobs in zip(data_D, known, strict=True)]
        return await train_step(weighted, training_client, loss_fn=loss_fn, metrics=metrics, **settings)

    with replaced_names(loop, train_step=step):
        yield


def observation_tokens(datum: tinker.Datum) -> "NDArray[np.bool_]":
    """Return a mask of a datum's observation tokens: the targets after its first sampled token that are not sampled."""
    mask = datum.loss_fn_inputs["mask"].to_numpy() > 0
    return np.logical_or.accumulate(mask) & ~mask


def with_observations(datum: tinker.Datum, logprobs: "NDArray[np.floating]", weight: float) -> tinker.Datum:
    """Return a datum in which the observation tokens have an advantage.

    Args:
        datum: A datum of the cookbook's ``assemble_training_data``.
        logprobs: The trainer's log-probability of each target, in nats.
        weight: The advantage of each observation token.
    """
    shown = observation_tokens(datum)
    inputs = dict(datum.loss_fn_inputs)
    for name, values in (("logprobs", logprobs), ("advantages", weight)):
        before = inputs[name].to_numpy()
        inputs[name] = tinker.TensorData.from_numpy(np.where(shown, values, before).astype(before.dtype))
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def without_mask(datum: tinker.Datum) -> tinker.Datum:
    """Return a datum without its mask, which the service does not take."""
    inputs = {name: values for name, values in datum.loss_fn_inputs.items() if name != "mask"}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)
