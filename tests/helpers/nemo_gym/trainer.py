"""A reader of rows that refuses the same rows as NeMo RL. Source: NeMo RL, ``nemo_rl/environments/nemo_gym.py``."""

from collections.abc import Sequence
from typing import Any

from harbor_gym.types import TokenSequence
from tests.helpers.sequences import of_mask


def read_as_trainer(output: Sequence[dict[str, Any]]) -> TokenSequence:
    """Return the training sequence of a row's output, as NeMo RL reads it; one that it refuses fails."""
    seen: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for item in output:
        if not item.get("generation_token_ids"):
            continue
        prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
        assert prompt[: len(seen)] == seen, "NeMo RL: Non-contiguous messages found!"
        shown = len(prompt) - len(seen)
        mask += [0] * shown + [1] * len(sampled)
        logprobs += [0.0] * shown + item["generation_log_probs"]
        seen = [*prompt, *sampled]
    assert 1 in mask, "NeMo RL: NeMo Gym returned a result with no generation data"
    first = mask.index(1)
    return of_mask(seen[:first], seen[first:], mask[first:], logprobs[first:])
