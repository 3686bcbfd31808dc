"""Rollouts as OpenEnv's training traces."""

import math
from collections.abc import Mapping
from typing import Any

from openenv.core.harness.training import TrainingTrace, TrainingTurn

from harbor_gym.errors import UsageError
from harbor_gym.types import Rollout, TokenTransition

_ROUNDING = 1e-6
"""Some engines return log-probabilities of nearly certain tokens that are up to this far above 0."""


def training_trace(rollout: Rollout) -> TrainingTrace:
    """Return an episode as a trace that OpenEnv's validators accept, with a turn for each sampled message.

    The loss mask is 1 for sampled tokens and 0 for prompt tokens; it is 0 throughout for a lost episode, which must not
    be trained. A trace has no reward: OpenEnv takes it from the session.

    Args:
        rollout: An episode of :func:`harbor_gym.run_episode`; its sampler must return log-probabilities. Its
            ``transcript`` is for logs and for reward functions that read messages.

    Raises:
        UsageError: A sampled message has no log-probability for each of its tokens.
    """
    messages: list[dict[str, str]] = []
    if rollout.transcript.system_prompt:
        messages.append({"role": "system", "content": rollout.transcript.system_prompt})
    turns = rollout.turns
    traced: list[TrainingTurn] = []
    for number, transition in enumerate(rollout.transitions):
        text: dict[str, Any] = {}
        if number < len(turns):
            messages.append({"role": "user", "content": turns[number].observation})
            answer = {"role": "assistant", "content": turns[number].action}
            text = {"request": {"messages": list(messages)}, "response": {"choices": [{"message": answer}]}}
            messages.append(answer)
        traced.append(_turn(number, transition, text, is_trained=not rollout.is_lost))
    return TrainingTrace(turns=traced)


def _turn(number: int, transition: TokenTransition, text: Mapping[str, Any], *, is_trained: bool) -> TrainingTurn:
    prompt, sampled = list(transition.prompt), list(transition.sample.tokens)
    return TrainingTurn(
        node_id=f"turn-{number}",
        prompt_token_ids=prompt,
        completion_token_ids=sampled,
        per_token_logps=_logprobs(number, transition),
        loss_mask=[0] * len(prompt) + [int(is_trained)] * len(sampled),
        metadata={"stop_reason": transition.sample.stop_reason},
        **text,
    )


def _logprobs(number: int, transition: TokenTransition) -> list[float]:
    given, length = transition.sample.logprobs, len(transition.sample.tokens)
    if given is None or len(given) != length or not all(map(math.isfinite, given)):
        raise UsageError(
            f"turn {number}: {length} sampled tokens need as many finite log-probabilities to be trained on; use a "
            "sampler that returns them"
        )
    return [0.0 if 0 < value <= _ROUNDING else float(value) for value in given]
