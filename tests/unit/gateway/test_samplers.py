"""Samplers over HTTP engines, against a double that speaks as vLLM documents it."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from harbor_gym.errors import SamplerError, UsageError
from harbor_gym.gateway import Gateway
from harbor_gym.samplers import CompletionsSampler, engine_client
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.gateway.vllm_double import END, VllmDouble, vllm_double


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmDouble]:
    monkeypatch.setattr(engine_client, "_BACKOFF_SEC", 0.001)
    async with vllm_double() as double:
        yield double


@pytest.mark.parametrize("returns_token_ids", [True, False], ids=["token_ids", "named tokens"])
async def test_token_ids_in_and_out(engine: VllmDouble, returns_token_ids: bool) -> None:
    engine.returns_token_ids = returns_token_ids
    async with CompletionsSampler(engine.base_url, "qwen", max_tokens=9, extra_body={"top_p": 0.9}) as sample:
        sampled = await sample([5, 6, 7])
    assert (sampled.tokens, sampled.logprobs, sampled.stop_reason) == (
        [7, 6, 5, END],
        [-0.07, -0.06, -0.05, 0.0],
        "stop",
    )
    (body,) = engine.requests
    assert (body["prompt"], body["model"], body["top_p"], body["max_tokens"]) == ([5, 6, 7], "qwen", 0.9, 9)
    assert engine.keys == [""]


async def test_a_message_that_was_cut(engine: VllmDouble) -> None:
    async with CompletionsSampler(f"{engine.base_url}/v1/", "qwen", max_tokens=2) as sample:
        sampled = await sample([5, 6, 7])
    assert (sampled.tokens, sampled.stop_reason) == ([7, 6], "length")


async def test_the_key_comes_from_the_environment(engine: VllmDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ENGINE_KEY"):
        CompletionsSampler(engine.base_url, "qwen", max_tokens=2, api_key_env="ENGINE_KEY")
    monkeypatch.setenv("ENGINE_KEY", "hidden")
    async with CompletionsSampler(engine.base_url, "qwen", max_tokens=2, api_key_env="ENGINE_KEY") as sample:
        await sample([5])
    assert engine.keys == ["Bearer hidden"]
    assert "hidden" not in repr(sample)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": None, "logprobs": None}, "no token ids"),
        ({"token_ids": ["5"], "logprobs": {"tokens": ["a"], "token_logprobs": [0.0]}}, "no token ids"),
        ({"token_ids": [1, 2]}, "no log-probability"),
        ({"logprobs": None}, "no log-probability"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "no numbers"),
        ({"finish_reason": "abort"}, "abort"),
        ({"finish_reason": None}, "None"),
    ],
)
async def test_answers_that_cannot_be_trained_on(engine: VllmDouble, changes: dict[str, Any], reason: str) -> None:
    engine.changes = changes
    async with CompletionsSampler(engine.base_url, "qwen", max_tokens=9) as sample:
        with pytest.raises(SamplerError, match=reason):
            await sample([5, 6, 7])
    assert len(engine.requests) == 1


async def test_an_overloaded_engine_is_asked_again(engine: VllmDouble) -> None:
    engine.statuses = [503, 429, 200]
    async with CompletionsSampler(engine.base_url, "qwen", max_tokens=9) as sample:
        assert (await sample([5])).tokens == [5, END]
        engine.statuses = [503] * 4
        with pytest.raises(SamplerError, match="status 503"):
            await sample([5])
        engine.statuses = [400]
        with pytest.raises(SamplerError, match="status 400"):
            await sample([5])
    assert len(engine.requests) == 3 + 4 + 1


async def test_an_engine_that_is_not_there(engine: VllmDouble) -> None:
    async with CompletionsSampler("http://127.0.0.1:9", "qwen", max_tokens=9) as sample:
        with pytest.raises(SamplerError, match="can't be reached"):
            await sample([5])
    with pytest.raises(UsageError, match="not open"):
        await sample([5])


async def test_an_engine_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        async with CompletionsSampler(address, "qwen", max_tokens=9, timeout_sec=0.1) as sample:
            with pytest.raises(SamplerError, match=r"within 0\.1 seconds"):
                await sample([5])


async def test_the_gateway_in_front_of_an_engine(engine: VllmDouble) -> None:
    """Proxy mode: two turns of chat in, token ids through the engine, one segment out."""
    async with (
        CompletionsSampler(engine.base_url, "qwen", max_tokens=4) as sample,
        Gateway(sample, CharacterCodec(), model="policy") as gateway,
        aiohttp.ClientSession(gateway.url) as client,
    ):
        session = gateway.open_session()
        messages: list[dict[str, Any]] = [{"role": "user", "content": "abc"}]
        for following in ("def", None):
            body = {"model": "policy", "messages": messages}
            async with client.post(f"/s/{session.key}/v1/chat/completions", json=body) as response:
                message = (await response.json())["choices"][0]["message"]
            messages += [message, {"role": "user", "content": following}]
    first, second = engine.requests
    assert second["prompt"][: len(first["prompt"]) + 4] == [*first["prompt"], *session.calls[0].sampled]
    (segment,) = session.trained_segments
    assert sum(segment.mask) == 8
