"""Training sequences of the columns that trainers keep."""

import itertools
from collections.abc import Sequence

from harbor_gym.types import SampledSpan, TokenSequence


def of_mask(
    prompt: Sequence[int], completion: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]
) -> TokenSequence:
    """Return the sequence whose sampled tokens are those with a mask of 1."""
    assert len(completion) == len(mask) == len(logprobs)
    places = itertools.groupby(range(len(mask)), key=lambda place: bool(mask[place]))
    runs = [list(run) for is_sampled, run in places if is_sampled]
    spans = tuple(SampledSpan(run[0], run[-1] + 1) for run in runs)
    return TokenSequence(list(prompt), list(completion), spans, list(logprobs))
