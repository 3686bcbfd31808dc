"""Samplers over HTTP engines, against a double that speaks as vLLM documents it."""

import email.utils
import socket
import time
from typing import Any

import aiohttp
import pytest

from harbor_gym.errors import SamplerError, UsageError
from harbor_gym.gateway import Gateway
from harbor_gym.samplers import CompletionsSampler, EngineSettingsError, statuses
from harbor_gym.types import EndReason
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.engine_double import EngineDouble
from tests.helpers.gateway.clients import play_two_turns


@pytest.mark.parametrize("returns_token_ids", [True, False], ids=["token_ids", "named tokens"])
async def test_token_ids_in_and_out(engine: EngineDouble, returns_token_ids: bool) -> None:
    engine.returns_token_ids = returns_token_ids
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9, extra_body={"top_p": 0.9}) as sample:
        sampled = await sample([5, 6, 7])
    assert (sampled.tokens, sampled.logprobs, sampled.stop_reason) == (
        [7, 6, 5, END],
        [-0.07, -0.06, -0.05, 0.0],
        "stop",
    )
    (body,) = engine.requests
    assert (body["prompt"], body["model"], body["top_p"], body["max_tokens"]) == ([5, 6, 7], "qwen", 0.9, 9)
    assert engine.keys == [""]


async def test_a_message_that_was_cut(engine: EngineDouble) -> None:
    async with CompletionsSampler(f"{engine.base_url}/", "qwen", max_tokens=2) as sample:
        sampled = await sample([5, 6, 7])
    assert (sampled.tokens, sampled.stop_reason) == ([7, 6], "length")


async def test_the_key_comes_from_the_environment(engine: EngineDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ENGINE_KEY"):
        CompletionsSampler(engine.url, "qwen", max_tokens=2, api_key_env="ENGINE_KEY")
    monkeypatch.setenv("ENGINE_KEY", "hidden")
    async with CompletionsSampler(engine.url, "qwen", max_tokens=2, api_key_env="ENGINE_KEY") as sample:
        await sample([5])
    assert engine.keys == ["Bearer hidden"]
    assert "hidden" not in repr(sample)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": [1, 2]}, "no log-probability"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "log-probability 0 of 1 is none: None"),
        ({"finish_reason": "abort"}, "abort"),
        ({"finish_reason": None}, "None"),
    ],
)
async def test_answers_that_cannot_be_trained_on(engine: EngineDouble, changes: dict[str, Any], reason: str) -> None:
    engine.changes = changes
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        with pytest.raises(SamplerError, match=reason):
            await sample([5, 6, 7])
    assert len(engine.requests) == 1


async def test_an_overloaded_engine_is_asked_again(engine: EngineDouble) -> None:
    engine.modes = [503, 429, 200]
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        assert (await sample([5])).tokens == [5, END]
        engine.modes = [503] * 4
        with pytest.raises(SamplerError, match="status 503"):
            await sample([5])
        engine.modes = [400]
        with pytest.raises(SamplerError, match="status 400"):
            await sample([5])
    assert len(engine.requests) == 3 + 4 + 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": None, "logprobs": None}, "no token ids"),
        ({"token_ids": ["5"], "logprobs": {"tokens": ["a"], "token_logprobs": [0.0]}}, "no token ids"),
        ({"logprobs": None}, "no log-probabilities"),
    ],
)
async def test_an_engine_that_cannot_be_trained_with(
    engine: EngineDouble, changes: dict[str, Any], reason: str
) -> None:
    engine.changes = changes
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        with pytest.raises(EngineSettingsError, match=reason):
            await sample([5, 6, 7])
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 413, 425, 429, 500, 501, 502, 503, 504, 529, 599])
async def test_what_may_pass_is_asked_again(engine: EngineDouble, status: int) -> None:
    engine.modes = [status, status, 200]
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        assert (await sample([5])).tokens == [5, END]
    assert len(engine.requests) == 3


@pytest.mark.parametrize("headers", [{"Retry-After-Ms": "1"}, {"Retry-After": "0.001"}])
async def test_the_engines_own_wait_is_honoured(
    engine: EngineDouble, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own wait would outlast the test."""
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 1e6)
    monkeypatch.setattr(statuses, "_MAX_BACKOFF_SEC", 1e6)
    engine.modes, engine.headers = [429, 500, 200], headers
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        assert (await sample([5])).tokens == [5, END]


def test_how_long_to_wait() -> None:
    now = time.time()
    date = email.utils.formatdate(now + 30, usegmt=True)
    for headers, low, high in (
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": "7", "Retry-After-Ms": "250"}, 0.25, 0.25),
        ({"Retry-After": date}, 1, 31),
        ({"Retry-After": "3600"}, 1.5, 2),
        ({"Retry-After": "-1"}, 1.5, 2),
        ({"Retry-After": "soon"}, 1.5, 2),
        ({"Retry-After": "nan"}, 1.5, 2),
        ({}, 1.5, 2),
    ):
        assert low <= statuses.pause_sec(headers, 2) <= high, headers
    assert 6 <= statuses.pause_sec({}, 9) <= 8


@pytest.mark.parametrize(("status", "words"), [(401, "--api-key-env"), (403, "another key"), (404, "the model's name")])
async def test_a_wrong_setting_is_no_infrastructure_failure(engine: EngineDouble, status: int, words: str) -> None:
    engine.modes = [status] * 4
    async with CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample:
        with pytest.raises(EngineSettingsError, match=f"{words}.*status {status}") as refused:
            await sample([5])
    assert (len(engine.requests), refused.value.is_infrastructure) == (1, False)
    assert "\n" not in str(refused.value)


async def test_a_gateways_session_ends_with_the_settings_error(engine: EngineDouble) -> None:
    engine.modes = [404] * 9
    ends: list[EndReason] = []
    async with (
        CompletionsSampler(engine.url, "qwen", max_tokens=9) as sample,
        Gateway(sample, CharacterCodec(), model="policy") as gateway,
        aiohttp.ClientSession(gateway.url) as client,
    ):
        session = gateway.open_session(on_limit=ends.append)
        body = {"model": "policy", "messages": [{"role": "user", "content": "task"}]}
        for _ in range(3):
            async with client.post(f"/s/{session.key}/v1/chat/completions", json=body) as response:
                assert response.status == 401  # at which this wire's clients stop
    assert len(engine.requests) == 1
    assert ends == [EndReason.INFRASTRUCTURE_ERROR]
    assert isinstance(session.error, EngineSettingsError)
    assert not session.error.is_infrastructure


async def test_an_engine_that_is_not_there(engine: EngineDouble) -> None:
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


async def test_the_gateway_in_front_of_an_engine(engine: EngineDouble) -> None:
    """Proxy mode: two turns of chat in, token ids through the engine, one segment out."""
    async with CompletionsSampler(engine.url, "qwen", max_tokens=4) as sample:
        session = await play_two_turns(sample)
    first, second = engine.requests
    assert second["prompt"][: len(first["prompt"]) + 4] == [*first["prompt"], *session.calls[0].sampled]
    (segment,) = session.trained_segments
    assert sum(segment.mask) == 8
