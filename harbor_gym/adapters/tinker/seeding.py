"""Sampling that a run repeats: one seed for each message, from the run's seed and the message's place in the run."""

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
    """Return the policy for one episode, each of whose messages is sampled with a seed of its own.

    The same weights and prompts then give the same tokens, as far as the service honours ``SamplingParams.seed``. The
    embedded server does; which requests it happens to compute together moves the logprobs by about 1e-6, so that two
    runs part where two tokens are that close.

    Args:
        policy: The policy of the batch.
        place: What distinguishes the episode from all others of the run.
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
