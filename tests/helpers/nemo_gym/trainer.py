"""A reader of rows that refuses the same rows as NeMo RL.

Source: NeMo RL, ``nemo_rl/environments/nemo_gym.py`` and ``nemo_rl/utils/routed_experts_codec.py``.
"""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harbor_gym.types import RoutedExperts, TokenSequence
from tests.helpers.sequences import of_mask


def read_as_trainer(output: Sequence[dict[str, Any]]) -> TokenSequence:
    """Return the training sequence of a row's output, as NeMo RL reads it; one that it refuses fails.

    It has routed experts if the first answer has: with them NeMo RL refuses an answer without.
    """
    seen: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    routes: list[Any] = []
    for item in output:
        if not item.get("generation_token_ids"):
            continue
        prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
        assert prompt[: len(seen)] == seen, "NeMo RL: Non-contiguous messages found!"
        if routes or item.get("routed_experts") is not None:
            rows = _unpacked(item["routed_experts"])
            assert len(rows) >= len(prompt) + len(sampled), "NeMo RL: too few routed_experts rows"
            if seen:
                routes[-1] = rows[len(seen) - 1]  # the prompt's pass is the first over the token sampled last
            routes += [*rows[len(seen) : len(prompt) + len(sampled)]]
        shown = len(prompt) - len(seen)
        mask += [0] * shown + [1] * len(sampled)
        logprobs += [0.0] * shown + item["generation_log_probs"]
        seen = [*prompt, *sampled]
    assert 1 in mask, "NeMo RL: NeMo Gym returned a result with no generation data"
    first = mask.index(1)
    sequence = of_mask(seen[:first], seen[first:], mask[first:], logprobs[first:])
    return replace(sequence, routed_experts=RoutedExperts(0, np.stack(routes[:-1]))) if routes else sequence


def _unpacked(routes: Any) -> Any:
    if not isinstance(routes, str):
        return np.asarray(routes, dtype=np.int16)
    magic, kind, shape, content = routes.split(":", 3)
    assert (magic, kind) == ("nrlre1", "int16"), "NeMo RL: not a valid envelope"
    rows = np.frombuffer(base64.b64decode(content, validate=True), dtype="<i2")
    return rows.reshape([int(size) for size in shape.split("x")])
