"""Reproducible sampling: a seed for each message, from the run's seed and the message's place in the run."""

import dataclasses
import hashlib
from typing import cast

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter


def seed_of(*place: object) -> int:
    """Return the seed (31 bits) of a place, such as ``(run seed, group's label, episode, attempt, turn)``."""
    digest = hashlib.sha256("\0".join(map(str, place)).encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def seeded(policy: TinkerTokenCompleter, *place: object) -> TinkerTokenCompleter:
    """Return the policy for one episode, with a separate seed for each message.

    The same weights and prompts then give the same tokens, if the service honours ``SamplingParams.seed``. The embedded
    server does; but its batching changes log-probabilities by about 1e-6, so that two runs may diverge at tokens with
    nearly equal probabilities.

    Args:
        policy: The policy of the batch.
        place: Values that identify the episode in the run.
    """
    client = cast("tinker.SamplingClient", _SeededClient(policy.sampling_client, place))
    return dataclasses.replace(policy, sampling_client=client)


class _SeededClient:
    """The part of a client that :class:`TinkerTokenCompleter` uses, with the seed added."""

    def __init__(self, client: tinker.SamplingClient, place: tuple[object, ...]) -> None:
        self._client = client
        self._place = place
        self._turn = 0

    async def sample_async(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> tinker.SampleResponse:
        seed = seed_of(*self._place, self._turn)
        self._turn += 1
        params = sampling_params.model_copy(update={"seed": seed})
        return await self._client.sample(prompt=prompt, num_samples=num_samples, sampling_params=params)
