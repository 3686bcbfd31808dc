"""A prompt that an engine refuses because it is too long, in each engine's own words; and the window that one tells."""

from typing import Any

import pytest

from harbor_gym.errors import ContextOverflowError, SamplerError
from harbor_gym.samplers import CompletionsSampler, SGLangSampler
from harbor_gym.samplers.overflow import is_overflow
from tests.helpers.engine_double import EngineDouble, serve

REFUSALS = {
    "vllm": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the "
    "messages, 500 in the completion). Please reduce the length of the messages or completion.",
    "vllm, the prompt alone": "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make "
    "sure that `max_model_len` is no smaller than the number of text tokens.",
    "vllm, the answer": "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context "
    "length is 4096 tokens and your request has 3900 input tokens (500 > 4096 - 3900).",
    "vllm, with images": "The prompt (total length 5000) is too long to fit into the model (context length 4096). Make "
    "sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
    "sglang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "sglang, with the answer": "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
    "requested a total of 5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion.",
    "sglang, the scheduler": "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens). Use a "
    "shorter input or enable --allow-auto-truncate.",
    "openai": '{"error": {"message": "Your input exceeds the context window of this model.", '
    '"code": "context_length_exceeded"}}',
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "anthropic, behind a proxy": "prompt is too long: 208310 tokens > 200000 maximum",
    "bedrock, behind a proxy": "Input is too long for requested model.",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
}
"""Source: the engines' own sources and error logs."""

OTHERS = (
    "temperature must be at most 2",
    "`max_tokens` must be at least 1, got 0",
    "The model `qwen` does not exist.",
    "top_logprobs is too large",
)


@pytest.mark.parametrize("engine", REFUSALS)
def test_the_words_of_an_engine(engine: str) -> None:
    assert is_overflow(400, REFUSALS[engine])
    assert not is_overflow(500, REFUSALS[engine]), "an engine that fails is no refusal"


@pytest.mark.parametrize("words", OTHERS)
def test_another_refusal_is_no_overflow(words: str) -> None:
    assert not is_overflow(400, words)


@pytest.mark.parametrize("words", REFUSALS.values(), ids=REFUSALS)
async def test_samplers_say_so(words: str) -> None:
    async with serve(EngineDouble()) as engine:
        engine.refusal = words
        engine.modes = [400, 400]
        async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
            with pytest.raises(ContextOverflowError, match="answered with status 400"):
                await sample([5])
        async with SGLangSampler(engine.url, max_tokens=9) as sample:
            with pytest.raises(ContextOverflowError, match="answered with status 400"):
                await sample([5])
        assert len(engine.requests) == 2, "neither is asked again"


async def test_a_message_that_sglangs_scheduler_aborts() -> None:
    async with serve(EngineDouble()) as sglang, SGLangSampler(sglang.url, max_tokens=9) as sample:
        words = REFUSALS["sglang, the scheduler"]
        sglang.changes = {"finish_reason": {"type": "abort", "message": words, "status_code": 400}}
        with pytest.raises(ContextOverflowError):
            await sample([5])
        sglang.changes = {"finish_reason": {"type": "abort", "message": "Aborted"}}
        with pytest.raises(SamplerError) as caught:
            await sample([5])
    assert not isinstance(caught.value, ContextOverflowError)


@pytest.mark.parametrize(
    ("page", "window"),
    [
        ({"object": "list", "data": [{"id": "qwen", "max_model_len": 4096}]}, 4096),
        ({"data": [{"id": "qwen", "max_model_len": 4096}, {"id": "adapter", "max_model_len": 4096}]}, 4096),
        ({"data": [{"id": "qwen", "max_model_len": 4096}, {"id": "other", "max_model_len": 512}]}, None),
        ({"data": [{"id": "qwen"}]}, None),
        ({"data": []}, None),
        ({"data": ["qwen"]}, None),
        ({}, None),
        (None, None),
    ],
)
async def test_the_window_that_the_engine_tells(page: dict[str, Any] | None, window: int | None) -> None:
    async with serve(EngineDouble()) as engine, CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        engine.models = page
        assert await sample.context_tokens() == window
        engine.models = {"data": [{"id": "qwen", "max_model_len": 1}]}
        assert await sample.context_tokens() == window, "it is asked once"
