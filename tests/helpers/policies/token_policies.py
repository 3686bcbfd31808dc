"""Policies for the cookbook's rollouts that answer from a script, in real tokens."""

import json
from types import SimpleNamespace
from typing import Any

from tests.helpers.chats.tokenizers import byte_level_tokenizer

RENDERER = "qwen3_instruct"


def message(keys: str | None, *, complete: bool = False, duration: float = 1.0) -> str:
    commands = [{"keystrokes": keys, "duration": duration}] if keys else []
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


def scripted(
    *answers: str | list[str], length_at: int | None = None, unlikely_at: int | None = None, random: Any = None
) -> Any:
    """A token policy that answers each turn from a list, however the episodes interleave.

    Args:
        answers: One per turn; of several, ``random`` chooses one.
        length_at: The turn whose answer is cut off by the token limit.
        unlikely_at: The turn whose tokens have a log-probability of -1 and not of 0.
        random: A ``random.Random``.
    """
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs

    tokenizer = byte_level_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    class Scripted(TokenCompleter):
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            assert stop == [end]
            turn = tokenizer.decode(model_input.to_ints()).count("<|im_start|>assistant") - 1
            answer = answers[turn]
            text = answer if isinstance(answer, str) else random.choice(answer)
            tokens = tokenizer.encode(text, add_special_tokens=False)
            logprob = -1.0 if turn == unlikely_at else 0.0
            if turn == length_at:
                return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens), stop_reason="length")
            return TokensWithLogprobs(tokens=[*tokens, end], maybe_logprobs=[logprob] * (len(tokens) + 1))

    return Scripted()


class SamplingClient:
    """The sampling client of the cookbook's loop, answered by a token policy."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        """Return one sample, as the newer method does."""
        return await self.sample_async(prompt, num_samples, sampling_params)

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        """Return one sample."""
        assert num_samples == 1
        sampled = await self._policy(prompt, sampling_params.stop)
        sequence = SimpleNamespace(
            tokens=sampled.tokens, logprobs=sampled.maybe_logprobs, stop_reason=sampled.stop_reason
        )
        return SimpleNamespace(sequences=[sequence])
