"""A Tinker sampling client as the sampler of :func:`harbor_gym.rollout.run_episode`."""

import functools
from collections.abc import Sequence

import tinker
from tinker_cookbook.tokenizer_utils import get_tokenizer

from harbor_gym.adapters.tinker.codec import TrainedCodec, codec_of
from harbor_gym.errors import UsageError
from harbor_gym.types import Sample, Sampler


@functools.lru_cache(maxsize=8)
def codec_for(renderer_name: str, model_name: str) -> TrainedCodec:
    """Return the codec of a renderer's name, or of ``chat_template``, with a model's tokenizer. Cached.

    Raises:
        UsageError: The tokenizer can't be loaded, there is no such renderer, or it can't be continued token by token.
    """
    try:
        tokenizer = get_tokenizer(model_name)
    except (OSError, ValueError) as exc:  # transformers' errors for a missing or invalid model
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise UsageError(f"model_name {model_name!r}: its tokenizer can't be loaded: {reason}") from exc
    return codec_of(renderer_name, tokenizer, model_name=model_name)


def tinker_sampler(
    client: tinker.SamplingClient, *, stop: list[str] | list[int], max_tokens: int, temperature: float = 1.0
) -> Sampler:
    """Return a sampler for the policy of a client.

    Args:
        client: The client; it may serve many samplers concurrently.
        stop: The renderer's stop condition, ``RendererCodec.stop``.
        max_tokens: Limit of one message, in tokens.
        temperature: Sampling temperature; 0 is greedy.
    """
    parameters = tinker.SamplingParams(stop=stop, max_tokens=max_tokens, temperature=temperature)

    async def sample(prompt: Sequence[int]) -> Sample:
        answer = await client.sample(
            prompt=tinker.ModelInput.from_ints(list(prompt)), num_samples=1, sampling_params=parameters
        )
        sequence = answer.sequences[0]
        return Sample(sequence.tokens, sequence.logprobs, sequence.stop_reason).checked(max_tokens=max_tokens)

    return sample
