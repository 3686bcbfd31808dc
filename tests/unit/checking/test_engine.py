"""Which promises of an engine are found broken: by doubles of vLLM and SGLang, whole and lying."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from harbor_gym.checking.engine import EngineReport, check_engine
from harbor_gym.cli.main import app
from harbor_gym.gateway import Gateway
from tests.helpers.engine_double import EngineDouble, Mode, serve
from tests.helpers.gateway.clients import THOUGHT, Script, ThinkingCodec
from tests.helpers.loopback import reserved_port

type Api = Literal["completions", "sglang", "chat"]


class _Tokenizer:
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


@pytest.fixture
async def engine() -> AsyncGenerator[EngineDouble]:
    async with serve(EngineDouble(max_context_tokens=100)) as double:
        yield double


def _broken(report: EngineReport) -> list[str]:
    return [found.promise for found in report.findings if found.kept is False]


@pytest.mark.parametrize("api", ["completions", "sglang"])
async def test_an_engine_that_serves_training_keeps_all_that_is_needed(engine: EngineDouble, api: Api) -> None:
    report = await check_engine(engine.url, api=api)
    kept = {found.promise for found in report.findings if found.kept}
    assert kept >= {"takes and returns token ids", "uses the prompt as sent", "a message has its stop token",
                    "keeps max_tokens", "refuses a prompt that is too long", "reports its window"}  # fmt: skip
    assert report.ok
    assert json.loads(json.dumps(report.as_object()))["ok"] is True


def _changed(**changes: Any) -> Callable[[EngineDouble], object]:
    def change(engine: EngineDouble) -> None:
        engine.changes = changes

    return change


def _always(mode: Mode) -> Callable[[EngineDouble], object]:
    def change(engine: EngineDouble) -> None:
        engine.always = mode

    return change


def _stop(mode: Literal["left out", "ignored"]) -> Callable[[EngineDouble], object]:
    def change(engine: EngineDouble) -> None:
        engine.stop = mode

    return change


def _without_models(engine: EngineDouble) -> None:
    engine.models = {"data": [{"id": "policy"}]}


_IDS = "takes and returns token ids"
_NAN = {"tokens": ["token_id:5"], "token_logprobs": [float("nan")]}


@pytest.mark.parametrize(
    ("lie", "promise"),
    [
        pytest.param(_changed(token_ids=None, logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}), _IDS, id="no ids"),
        pytest.param(_changed(token_ids=[5], logprobs=_NAN), _IDS, id="NaN"),
        pytest.param(_changed(token_ids=[5, 6]), _IDS, id="ids and log-probabilities differ in number"),
        pytest.param(_always("HTML"), _IDS, id="HTML"),
        pytest.param(_always(404), _IDS, id="404"),
        pytest.param(_always(500), _IDS, id="500 to token ids"),
        pytest.param(_changed(prompt_token_ids=[1, 2]), "uses the prompt as sent", id="another prompt"),
        pytest.param(_stop("ignored"), "a message has its stop token", id="stop token ignored"),
        pytest.param(_stop("left out"), "a message has its stop token", id="stop token left out"),
        pytest.param(_without_models, "reports its window", id="no window"),
    ],
)
async def test_a_lie_is_named(engine: EngineDouble, lie: Callable[[EngineDouble], object], promise: str) -> None:
    lie(engine)
    report = await check_engine(engine.url, model="policy")
    assert promise in _broken(report)
    assert report.ok == (promise == "reports its window")
    if promise == _IDS:
        assert {found.kept for found in report.findings[1:]} == {None}


async def test_another_models_tokenizer_is_named(engine: EngineDouble) -> None:
    report = await check_engine(engine.url, tokenizer=_Tokenizer())
    assert "text is that of the ids" in _broken(report)
    engine.changes = {"text": "".join(map(chr, range(307, 299, -1)))}
    assert "text is that of the ids" not in _broken(await check_engine(engine.url, tokenizer=_Tokenizer()))


async def test_a_prompt_that_is_cut_without_a_word_is_named(engine: EngineDouble) -> None:
    assert engine.models is not None
    engine.models["data"][0]["max_model_len"] = 60  # and it takes 100
    assert "refuses a prompt that is too long" in _broken(await check_engine(engine.url))


def test_an_engine_that_is_not_there_is_one_line() -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        found = CliRunner().invoke(app, ["check-engine", url, "--model", "policy", "--json"])
        unnamed = CliRunner().invoke(app, ["check-engine", url])
    assert found.exit_code == 1
    first, *rest = json.loads(found.stdout)["findings"]
    assert "can't be reached" in first["reason"]
    assert {item["kept"] for item in rest} == {None}
    assert unnamed.exit_code == 2


async def test_a_gateway_continues_its_prompts_and_a_bare_engine_that_drops_thinking_does_not() -> None:
    answers = [f"{THOUGHT}ls", "done"]
    async with Gateway(Script("ls", *answers, "x"), ThinkingCodec(), model="policy") as gateway:
        report = await check_engine(f"{gateway.url}/s/{gateway.open_session().key}", api="chat", model="policy")
    assert report.ok, report
    assert {found.promise for found in report.findings if found.kept} >= {
        "returns token ids",
        "the next prompt continues the last",
    }

    def write(messages: Sequence[Any]) -> str:
        return answers[0]

    async with serve(EngineDouble(write=write)) as engine:
        report = await check_engine(engine.url, api="chat")
    assert "the next prompt continues the last" in _broken(report)
    assert not report.ok


async def test_a_chat_endpoint_without_token_ids_is_named(engine: EngineDouble) -> None:
    engine.always = (200, {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]})
    report = await check_engine(engine.url, api="chat")
    assert [found.kept for found in report.findings] == [False, None, None, None]
