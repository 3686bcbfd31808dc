"""The sampler over SGLang's ``/generate``, against a double that speaks as SGLang documents it."""

import base64
from typing import Any

import numpy as np
import pytest

from harbor_gym.errors import HarborGymError, SamplerError, UsageError
from harbor_gym.samplers import EngineSettingsError, SGLangSampler
from tests.helpers.chats.character_codec import END
from tests.helpers.engine_double import EngineDouble
from tests.helpers.gateway.clients import play_two_turns


async def test_token_ids_in_and_out(engine: EngineDouble) -> None:
    settings: dict[str, Any] = {"stop_token_ids": [END], "extra_body": {"lora_path": "x"}}
    async with SGLangSampler(engine.url, max_tokens=9, sampling_params={"top_p": 0.9}, **settings) as sample:
        sampled = await sample((5, 6, 7))
    assert (sampled.tokens, sampled.logprobs, sampled.stop_reason) == (
        [7, 6, 5, END],
        [-0.07, -0.06, -0.05, 0.0],
        "stop",
    )
    (body,) = engine.requests
    assert (body["input_ids"], body["lora_path"], body["return_logprob"]) == ([5, 6, 7], "x", True)
    assert body["sampling_params"] == {
        "max_new_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.9,
        "stop_token_ids": [END],
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


@pytest.mark.parametrize(
    ("layers", "packed", "problem"),
    [
        (2, True, None),
        (4, True, "are those of tokens 0 to 3, and 7 tokens have them up to 6"),
        (5, True, "not of 5 layers with 2 experts"),
        (2, "?", "not of 2 layers with 2 experts"),
        (2, None, "--enable-return-routed-experts"),
    ],
)
async def test_routed_experts_come_with_the_sample(
    engine: EngineDouble, layers: int, packed: object, problem: str | None
) -> None:
    routes = np.arange(6 * 2 * 2, dtype="<i4")
    engine.changes = {"routed_experts": base64.b64encode(routes.tobytes()).decode() if packed is True else packed}
    async with SGLangSampler(engine.url, max_tokens=9, stop_token_ids=[END], routed_experts=(layers, 2)) as sample:
        if problem is not None:
            with pytest.raises(HarborGymError, match=problem):
                await sample((5, 6, 7))
            return
        sampled = await sample((5, 6, 7))
    assert engine.requests[0]["return_routed_experts"] is True
    assert sampled.routed_experts is not None
    assert (sampled.routed_experts.start, sampled.routed_experts.experts.tolist()) == (
        0,
        routes.reshape(6, 2, 2).tolist(),
    )


async def test_a_message_that_was_cut(engine: EngineDouble) -> None:
    async with SGLangSampler(engine.url, max_tokens=2) as sample:
        sampled = await sample([5, 6, 7])
    assert (sampled.tokens, sampled.stop_reason) == ([7, 6], "length")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output_token_logprobs": [[None, 5, None]]}, "without log-probability"),
        ({"output_token_logprobs": [[-1.0]]}, "without log-probability"),
        ({"finish_reason": {"type": "abort", "message": "too long"}}, "too long"),
        ({"finish_reason": None}, "neither stop nor length"),
    ],
)
async def test_answers_that_cannot_be_trained_on(engine: EngineDouble, changes: dict[str, Any], reason: str) -> None:
    engine.changes = changes
    async with SGLangSampler(engine.url, max_tokens=9) as sample:
        with pytest.raises(SamplerError, match=reason):
            await sample([5, 6, 7])


async def test_an_engine_without_log_probabilities(engine: EngineDouble) -> None:
    async with SGLangSampler(engine.url, max_tokens=9, extra_body={"return_logprob": False}) as sample:
        with pytest.raises(EngineSettingsError, match="return_logprob had no effect"):
            await sample([5])
        engine.changes = {"output_token_logprobs": None}
        with pytest.raises(EngineSettingsError, match="return_logprob had no effect"):
            await sample([5])


async def test_an_overloaded_engine_is_asked_again(engine: EngineDouble) -> None:
    engine.modes = [503, 200, 400]
    async with SGLangSampler(engine.url, max_tokens=9) as sample:
        assert (await sample([5])).tokens == [5, END]
        with pytest.raises(SamplerError, match="status 400"):
            await sample([5])
    with pytest.raises(UsageError, match="not open"):
        await sample([5])


async def test_the_gateway_in_front_of_it(engine: EngineDouble) -> None:
    engine.changes = {"weight_version": "7"}
    async with SGLangSampler(engine.url, max_tokens=4) as sample:
        session = await play_two_turns(sample)
    first, second = engine.requests
    assert second["input_ids"][: len(first["input_ids"]) + 4] == [*first["input_ids"], *session.calls[0].sampled]
    (segment,) = session.trained_segments
    assert sum(segment.mask) == 8
    assert [(span.call, span.version) for span in segment.spans] == [(0, 7), (1, 7)]
