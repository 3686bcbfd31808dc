"""The gateway before a chat endpoint: tools, ids and overflows, over real HTTP on both sides."""

import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from harbor_gym import EndReason, Sample
from harbor_gym.formats.tool_text import ToolDefinition
from harbor_gym.gateway import Gateway, Session
from harbor_gym.gateway.chat import ChatRequest, Message
from harbor_gym.gateway.errors import SessionEndedError
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.samplers import BudgetSpentError, ChatEndpoint
from tests.helpers.engine_double import EngineDouble, serve

TOOLS = [{"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}]


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}


ANSWERS: list[dict[str, Any]] = [
    {"content": None, "tool_calls": [call("first"), call("second")], "reasoning_content": "I look"},
    {"content": "done \U0001f600\u2028"},
]


@pytest.mark.parametrize(("tools", "is_unread"), [([ToolDefinition("bash")], True), ([], False)])
def test_a_call_that_the_endpoint_left_in_its_text_is_counted(tools: list[ToolDefinition], is_unread: bool) -> None:
    """An engine that was started without its tool parser, or with another family's."""
    message = {"role": "assistant", "content": "<think>a</think><tool_call>{}</tool_call>"}
    parsed = ProxyCodec().parse([ord(character) for character in f"{json.dumps(message)}\n"], tools)
    assert (parsed.tool_calls, parsed.is_unread_call) == ((), is_unread)


async def test_tool_calls_and_results_keep_the_endpoints_ids() -> None:
    answers = [{"finish_reason": "stop", "message": {"role": "assistant", **answer}} for answer in ANSWERS]
    engine = EngineDouble()
    engine.modes = [*((200, {"choices": [answer]}) for answer in answers), "overflow"]
    async with (
        serve(engine),
        ChatEndpoint(engine.url, "m", max_tokens=9) as endpoint,
        Gateway(ProxySampler(endpoint), ProxyCodec(), model="policy") as gateway,
        aiohttp.ClientSession() as client,
    ):
        session = gateway.open_session()

        async def post(messages: list[Any]) -> tuple[int, Any]:
            body = {"model": "policy", "messages": messages, "tools": TOOLS}
            async with client.post(f"{session.base_url}/v1/chat/completions", json=body) as response:
                return response.status, await response.json()

        async def ask(messages: list[Any]) -> dict[str, Any]:
            (choice,) = (await post(messages))[1]["choices"]
            return choice

        messages: list[Any] = [{"role": "user", "content": "é"}]
        answer = (await ask(messages))["message"]
        ids = [item["id"] for item in answer["tool_calls"]]
        # Results come in another order than their calls.
        results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ids[::-1]]
        messages += [{name: answer[name] for name in ("role", "content", "tool_calls")}, *results]
        last = (await ask(messages))["message"]
        assert last["content"] == ANSWERS[1]["content"]
        messages += [last, {"role": "user", "content": "and now?"}]
        status, refusal = await post(messages)
        assert (status, refusal["error"]["code"]) == (400, "context_length_exceeded")
        assert session.end_reason is EndReason.CONTEXT_OVERFLOW
        assert session.error is None
    assert not session.breaks
    assert [request["tools"] for request in engine.requests] == [TOOLS] * 3
    first, *rest = engine.requests[1]["messages"]
    assert first == {"role": "user", "content": "é"}
    assert rest[0] == {"role": "assistant", **{name: value for name, value in ANSWERS[0].items() if value is not None}}
    assert [item["tool_call_id"] for item in rest[1:]] == ["second", "first"]
    assert [item["content"] for item in rest[1:]] == [f"of {name}" for name in ids[::-1]]


async def test_a_budget_of_the_sampler_ends_the_session() -> None:
    async def sample(prompt: Sequence[int]) -> Sample:
        spent = BudgetSpentError("no more answers")
        spent.reason = EndReason.MAX_TOKENS
        raise spent

    session = Session(sample, ProxyCodec(), model="policy")
    request = ChatRequest("policy", (Message("user", "hello"),))
    with pytest.raises(SessionEndedError):
        await session.answer(request)
    assert (session.end_reason, session.error) == (EndReason.MAX_TOKENS, None)
