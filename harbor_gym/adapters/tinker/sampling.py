"""A Tinker sampling client as the sampler of :func:`harbor_gym.rollout.run_episode`."""

from collections.abc import Sequence

import tinker
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

from harbor_gym.adapters.tinker.codec import RendererCodec
from harbor_gym.rollout import Sample, Sampler


def codec_for(renderer_name: str, model_name: str) -> RendererCodec:
    """Return the codec of a cookbook renderer with a model's tokenizer; the model is a name, or a directory."""
    return RendererCodec(get_renderer(renderer_name, get_tokenizer(model_name), model_name=model_name))


def tinker_sampler(
    client: tinker.SamplingClient, *, stop: list[str] | list[int], max_tokens: int, temperature: float = 1.0
) -> Sampler:
    """Return a sampler of one message.

    Args:
        client: The policy; it may serve many samplers at once.
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
        return Sample(sequence.tokens, sequence.logprobs, sequence.stop_reason)

    return sample
