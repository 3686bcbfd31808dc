"""Every sampler reads an engine's statuses by one table and its numbers by one function, and survives any answer."""

import contextlib
import copy
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harbor_gym.adapters.nemo_gym.model_server import ModelServer, ServerHistory
from harbor_gym.errors import ContextOverflowError, SamplerError
from harbor_gym.gateway.chat import Message
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.samplers import ChatEndpoint, CompletionsSampler, EngineSettingsError, SGLangSampler, statuses
from harbor_gym.samplers.engine_client import EngineClient
from harbor_gym.types import Sample
from tests.helpers.engine_double import EngineDouble, Mode, in_turn

type Ask = Callable[[], Awaitable[object]]

CHAT = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def completions(engine: EngineDouble) -> AsyncGenerator[Ask]:
    async with CompletionsSampler(engine.url, "policy", max_tokens=9) as sample:
        yield lambda: sample([5, 6, 7])


@contextlib.asynccontextmanager
async def sglang(engine: EngineDouble) -> AsyncGenerator[Ask]:
    async with SGLangSampler(engine.url, max_tokens=9) as sample:
        yield lambda: sample([5, 6, 7])


@contextlib.asynccontextmanager
async def chat(engine: EngineDouble) -> AsyncGenerator[Ask]:
    async with ChatEndpoint(engine.url, "policy", max_tokens=9) as ask:
        yield lambda: ask(CHAT)


@contextlib.asynccontextmanager
async def proxy(engine: EngineDouble) -> AsyncGenerator[Ask]:
    """Yield what the gateway asks in front of an endpoint."""
    prompt = ProxyCodec().render([Message("user", "hi")], [])
    async with ChatEndpoint(engine.url, "policy", max_tokens=9) as endpoint:
        yield lambda: ProxySampler(endpoint)(prompt)


@contextlib.asynccontextmanager
async def nemo_gym(engine: EngineDouble) -> AsyncGenerator[Ask]:
    """Yield a server's client as one agent has it: one for each episode."""
    history = ServerHistory()
    yield lambda: ModelServer(engine.post, {}, history=history)(CHAT)


DOORS = {"completions": completions, "sglang": sglang, "chat": chat, "gateway": proxy, "nemo_gym": nemo_gym}
OVER_HTTP = [name for name in DOORS if name != "nemo_gym"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, engine: EngineDouble) -> None:
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 0.001)
    engine._write = in_turn("hello")  # pyright: ignore[reportPrivateUsage]


RETRIED: list[Mode] = [408, 409, 413, 425, 429, 500, 502, 503, 504, 529, "HTML 502", "bad UTF-8", "empty"]
ON_THE_WIRE: list[Mode] = ["cut", (200, b'{"choices": [{'), (200, b"[" * 100_000), (503, b""), (413, b"<html>")]
LASTING: list[Mode] = [400, 405, 422, "HTML", (200, b"data: {}\n\n"), (200, {"status": "ok"}), (200, b"null")]
NEMO_GYMS: list[Mode] = [400, 405, 422, (200, {"status": "ok"})]
"""Those that the double's post in this process can send."""
SETTINGS: list[Mode] = [401, 403, 404, "unknown model"]
PAGE = b"<html><body>404 page not found</body></html>"


@pytest.mark.parametrize(
    ("door", "mode"),
    # The double's post in this process has JSON alone; a body that is none comes to that door below.
    [(door, mode) for door in DOORS for mode in RETRIED if door != "nemo_gym" or isinstance(mode, int)],
)
async def test_what_may_pass_is_asked_again(door: str, mode: Mode, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [mode, mode]
        await ask()
        assert len(engine.requests) == 3
        engine.modes = [mode] * 4
        with pytest.raises(SamplerError):
            await ask()
    assert len(engine.requests) == 7


@pytest.mark.parametrize("mode", ON_THE_WIRE, ids=lambda mode: f"{mode!r:.30}")
@pytest.mark.parametrize("door", OVER_HTTP)
async def test_what_breaks_on_the_wire_is_asked_again(door: str, mode: Mode, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [mode, mode]
        await ask()
    assert len(engine.requests) == 3


@pytest.mark.parametrize("content", [b"", b'{"output": [', b"[" * 100_000])
async def test_a_model_servers_body_that_is_no_json_is_asked_for_again(content: bytes, engine: EngineDouble) -> None:
    bodies = [content]

    async def post(body: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        return (200, {}, bodies.pop()) if bodies else await engine.post(body)

    assert (await ModelServer(post, {})(CHAT)).text
    assert (len(engine.requests), bodies) == (1, [])


@pytest.mark.parametrize("mode", SETTINGS, ids=str)
@pytest.mark.parametrize("door", DOORS)
async def test_a_wrong_setting_is_one_until_the_first_good_answer(door: str, mode: Mode, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [500, mode]
        with pytest.raises(EngineSettingsError):
            await ask()
        assert len(engine.requests) == 2
        await ask()
        engine.modes = [mode, mode]
        await ask()
        engine.modes = [mode] * 4
        with pytest.raises(SamplerError) as lost:
            await ask()
        assert lost.value.is_infrastructure
    assert len(engine.requests) == 2 + 1 + 3 + 4


@pytest.mark.parametrize("door", ["completions", "sglang"])
async def test_an_engine_that_fails_at_token_ids_from_the_first_on_is_a_wrong_setting(
    door: str, engine: EngineDouble
) -> None:
    """As llama.cpp's server does."""
    async with DOORS[door](engine) as ask:
        engine.modes = [500] * 4
        with pytest.raises(EngineSettingsError, match=r"fails at every request with token ids.*: take an engine"):
            await ask()
    assert len(engine.requests) == 4


@pytest.mark.parametrize(("door", "status"), [("chat", 500), ("completions", 503), ("sglang", 502)])
async def test_another_fault_at_the_first_request_is_a_loss(door: str, status: int, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [status] * 4
        with pytest.raises(SamplerError):
            await ask()


@pytest.mark.parametrize(
    ("door", "mode"),
    [(door, mode) for door in DOORS for mode in LASTING if door != "nemo_gym" or mode in NEMO_GYMS],
)
async def test_an_answer_that_can_not_change_ends_the_run_the_second_time(
    door: str, mode: Mode, engine: EngineDouble
) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [mode, mode]
        with pytest.raises(SamplerError) as first:
            await ask()
        assert first.value.is_infrastructure, "it costs its episode"
        with pytest.raises(EngineSettingsError) as second:
            await ask()
        assert str(second.value) == str(first.value)
        assert len(engine.requests) == 2, "neither was asked again"
        await ask()
        engine.modes = [mode] * 8
        for _ in range(2):
            with pytest.raises(SamplerError) as lost:
                await ask()
            assert lost.value.is_infrastructure, "an engine that has given a good answer may give one again"


@pytest.mark.parametrize("door", OVER_HTTP)
async def test_a_page_after_a_good_answer_is_asked_for_again(door: str, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        await ask()
        engine.modes = ["HTML", "HTML"]
        await ask()
    assert len(engine.requests) == 4


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", [400, 405, 422])
async def test_what_stays_is_asked_once(door: str, mode: Mode, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        await ask()
        engine.modes = [mode]
        with pytest.raises(SamplerError):
            await ask()
    assert len(engine.requests) == 2


@pytest.mark.parametrize("door", OVER_HTTP)
async def test_the_end_of_a_gateways_session_is_not_asked_for_again(door: str, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        await ask()
        engine.modes = [(401, {"error": {"message": "it is over", "code": "episode_ended"}})]
        with pytest.raises(SamplerError, match="it is over"):
            await ask()
    assert len(engine.requests) == 2


ODD_LOGPROBS = [math.nan, math.inf, -math.inf, 0.5, 1, True, False, None, "-1.0", [-1.0], {}, -(10**400), -1e300]
ODD_TOKENS = [-1, 2**31, 2**63, 10**400, True, 1.0, math.nan, None, [5], {}]


def answer_of(door: str, tokens: list[Any], logprobs: list[Any], usage: object = None) -> dict[str, Any]:
    """Return an engine's answer with these numbers."""
    if door == "completions":
        choice = {"finish_reason": "stop", "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
        return {"choices": [choice], "usage": usage}
    pairs = [[value, token, None] for value, token in zip(logprobs, tokens, strict=True)]
    reported: Any = usage or {}
    return {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": pairs, **reported}}


@pytest.mark.parametrize("value", ODD_LOGPROBS, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("door", ["completions", "sglang"])
async def test_an_odd_log_probability_is_refused_with_its_position(
    door: str, value: object, engine: EngineDouble
) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, answer_of(door, [5, 6, 7], [-1.0, value, -1.0]))]
        with pytest.raises(SamplerError, match=r"(log-probability|token) 1 "):
            await ask()
    assert len(engine.requests) == 1


@pytest.mark.parametrize("value", ODD_TOKENS, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("door", ["completions", "sglang"])
async def test_an_odd_token_is_refused_with_its_position(door: str, value: object, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, answer_of(door, [5, 6, value], [-1.0, -1.0, -1.0]))]
        with pytest.raises(SamplerError, match=r"token 2 "):
            await ask()


@pytest.mark.parametrize("name", ["token_id:-5", "token_id:99999999999"])
async def test_odd_names_of_tokens(name: str, engine: EngineDouble) -> None:
    async with completions(engine) as ask:
        logprobs = {"tokens": ["token_id:5", name], "token_logprobs": [-1.0, -1.0]}
        engine.modes = [(200, {"choices": [{"finish_reason": "stop", "logprobs": logprobs}]})]
        with pytest.raises(SamplerError, match="token 1 of 2"):
            await ask()


@pytest.mark.parametrize("door", ["completions", "sglang"])
async def test_more_tokens_than_asked(door: str, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, answer_of(door, [5] * 10, [-1.0] * 10))]
        with pytest.raises(SamplerError, match="sampled 10 tokens, and 9 were asked for"):
            await ask()


ODD_USAGE: list[dict[str, object]] = [
    {"prompt_tokens": 4},
    {"completion_tokens": 2},
    {"completion_tokens": 0},
    *({name: value} for name in ("prompt_tokens", "completion_tokens") for value in (-3, True, 3.5, "3", math.nan, [])),
]


@pytest.mark.parametrize("usage", ODD_USAGE, ids=str)
@pytest.mark.parametrize("door", ["completions", "sglang"])
async def test_a_usage_that_disagrees(door: str, usage: dict[str, object], engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, answer_of(door, [5, 6, 7], [-1.0, 0.0, -1]))]
        await ask()
        engine.modes = [(200, answer_of(door, [5, 6, 7], [-1.0, 0.0, -1], {"prompt_tokens": 3, **usage}))]
        with pytest.raises(SamplerError, match="the engine's usage has"):
            await ask()


@pytest.mark.parametrize("usage", [*ODD_USAGE[3:], [], "", 7], ids=lambda u: f"{u!r:.40}")
@pytest.mark.parametrize("door", ["chat", "gateway"])
async def test_a_chats_usage_is_no_number(door: str, usage: object, engine: EngineDouble) -> None:
    message = {"role": "assistant", "content": "hello"}
    answer = {"choices": [{"finish_reason": "stop", "message": message}], "usage": usage}
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, answer)]
        with pytest.raises(SamplerError, match="usage"):
            await ask()


@pytest.mark.parametrize("field", ["prompt_token_ids", "generation_token_ids", "generation_log_probs"])
async def test_numbers_of_a_model_server(field: str, engine: EngineDouble) -> None:
    async def post(body: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        status, headers, content = await engine.post(body)
        document = json.loads(content)
        document["output"][0][field][1] = True
        return status, headers, json.dumps(document).encode()

    with pytest.raises(SamplerError, match=r"(log-probability|token) 1 of "):
        await ModelServer(post, {})(CHAT)


def test_numbers_of_other_kinds_are_numbers() -> None:
    """Samplers of one's own may hand on what numpy has made."""
    sample = Sample(np.array([1, 2]), np.array([-0.5, 0.0], dtype=np.float32)).checked()  # pyright: ignore[reportArgumentType]
    assert (sample.tokens, sample.logprobs) == ([1, 2], [-0.5, 0.0])
    assert {type(item) for item in (*sample.tokens, *(sample.logprobs or ()))} == {int, float}
    assert Sample([], []).checked(max_tokens=0).logprobs == []
    assert Sample([1], [1e-7]).checked().logprobs == [1e-7], "a softmax in 32 bits rounds"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in a document."""
    inner: Any = ()
    if isinstance(document, dict | list):
        inner = document.items() if isinstance(document, dict) else enumerate(document)
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.copy(document)
    document[path[0]] = changed(document[path[0]], path[1:], value)
    return document


async def good_answer(door: str, engine: EngineDouble) -> Any:
    async with DOORS[door](engine) as ask:
        await ask()
        path = {"completions": "/v1/completions", "sglang": "/generate", "nemo_gym": "/v1/responses"}.get(door)
        _, _, document = await engine._reply(path or "/v1/chat/completions", engine.requests[-1], 200)  # pyright: ignore[reportPrivateUsage]
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("door", DOORS)
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_json_in_each_field(door: str, data: st.DataObject, engine: EngineDouble) -> None:
    good = await good_answer(door, engine)
    path = data.draw(st.sampled_from(places(good)))
    async with DOORS[door](engine) as ask:
        engine.modes = [(200, changed(good, path, data.draw(JSON)))]
        with contextlib.suppress(SamplerError, EngineSettingsError, ContextOverflowError):
            await ask()


@pytest.mark.parametrize("door", OVER_HTTP)
@given(body=st.binary(max_size=60), status=st.sampled_from([200, 201, 204, 301, 304, 400, 404, 418, 500]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_bytes(door: str, body: bytes, status: int, engine: EngineDouble) -> None:
    async with DOORS[door](engine) as ask:
        engine.always = (status, body)
        with contextlib.suppress(SamplerError, EngineSettingsError, ContextOverflowError):
            await ask()


@given(page=JSON | st.fixed_dictionaries({"data": JSON | st.lists(st.fixed_dictionaries({"max_model_len": JSON}))}))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_page_of_models(page: Any, engine: EngineDouble) -> None:
    engine.models = page
    async with EngineClient(engine.url, "/generate", api_key_env=None, timeout_sec=5, max_attempts=1) as client:
        window = await client.context_tokens()
    assert window is None or (type(window) is int and window > 0)
