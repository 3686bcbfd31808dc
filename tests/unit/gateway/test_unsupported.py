"""The gateway refuses unsupported requests in words of each wire, with a status that its clients do not repeat."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from harbor_gym.gateway import Gateway, Session
from tests.helpers.gateway.clients import Script, ThinkingCodec

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
INPUT_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALL_RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [BLOCK]}
USER = {"role": "user", "content": "hello"}


def chat(*parts: dict[str, Any], role: str = "user", **more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": role, "content": [*parts]} if parts else USER], **more}


def respond(item: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "policy", "input": [item or USER], **more}


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", chat(IMAGE), "'image_url'; only text is supported"),
    ("chat/completions", chat({"type": "input_audio", "input_audio": {}}), "'input_audio'; only text"),
    ("chat/completions", chat(IMAGE, role="tool", tool_call_id="call_1"), "'image_url'; only text"),
    ("chat/completions", chat(n=2), "n must be 1"),
    ("responses", respond({"role": "user", "content": [INPUT_IMAGE]}), "'input_image'; only text is supported"),
    ("responses", respond({"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE]}), "'input_image'"),
    ("responses", respond({"type": "item_reference", "id": "msg_1"}), "'item_reference'"),
    ("responses", respond(previous_response_id="resp_1"), "previous_response_id is not supported"),
    ("responses", respond(conversation="conv_1"), "conversation is not supported"),
    ("responses", respond(prompt={"id": "pmpt_1"}), "prompt is not supported"),
    ("responses", respond(background=True), "background is not supported"),
    ("messages", chat(BLOCK), "'image'; only text is supported"),
    ("messages", chat(CALL_RESULT), "'image'; only text is supported"),
    ("messages", chat({"type": "document", "source": {}}), "'document'; only text is supported"),
]


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with Gateway(Script("fine"), ThinkingCodec(), model="policy") as gateway:
        yield gateway.open_session()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body", "words"), CASES)
async def test_it_is_refused_and_costs_the_session_nothing(
    path: str, body: dict[str, Any], words: str, stream: bool, session: Session
) -> None:
    url = f"{session.base_url}/v1/{path}"
    async with aiohttp.ClientSession() as client:
        async with client.post(url, json={**body, "stream": stream}) as response:
            answer = await response.json()
            assert (response.status, response.content_type) == (400, "application/json")
        async with client.post(url, json=respond() if path == "responses" else chat()) as response:
            assert response.status == 200
    assert words in answer["error"]["message"]
    if path == "messages":
        assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert (answer["error"]["type"], answer["error"]["code"]) == ("invalid_request_error", "invalid_request")
    assert len(session.calls) == 1


async def test_openais_client_raises_its_own_error_at_once(session: Session) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{session.base_url}/v1", api_key="unused") as client:
        with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
            await client.responses.create(model="policy", input="hello", previous_response_id="resp_1")
    assert session.metrics["gateway/refused/invalid_request"] == 1
