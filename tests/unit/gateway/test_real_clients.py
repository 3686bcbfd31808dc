"""The gateway answered to real clients: OpenAI's library, and litellm's for Anthropic's messages."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.types import EndReason
from tests.helpers.gateway.clients import BASH, Script, ThinkingCodec, chat_body, text_of, tool_call, trained_text, user

if TYPE_CHECKING:
    import openai  # a second to import

ANSWER = f"<think>\nhm\n</think>\n\nI look.\n{tool_call(command='ls -l')}"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with Gateway(Script(ANSWER, "done"), ThinkingCodec(), model="policy") as gateway:
        yield gateway.open_session(limits=SessionLimits(max_turns=2))


@pytest.fixture
async def client(session: Session) -> AsyncIterator["openai.AsyncOpenAI"]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{session.base_url}/v1", api_key="unused") as client:
        yield client


async def test_chat_completions(client: "openai.AsyncOpenAI", session: Session) -> None:
    import openai

    body: Any = chat_body(user("task"), tools=True)
    first = await client.chat.completions.create(**body, logprobs=True, extra_body={"return_token_ids": True})
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.model_dump()["reasoning_content"] == "hm"
    assert choice.message.tool_calls
    assert choice.message.tool_calls[0].model_dump()["function"] == {
        "name": "bash",
        "arguments": '{"command": "ls -l"}',
    }
    (call,) = session.calls
    assert choice.logprobs is not None
    assert [entry.logprob for entry in choice.logprobs.content or []] == list(call.logprobs or ())
    assert choice.model_dump()["token_ids"] == list(call.sampled)
    assert first.model_dump()["prompt_token_ids"] == call.prompt
    assert first.usage is not None
    assert first.usage.completion_tokens == len(call.sampled)
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "total 0"}
    body["messages"] += [choice.message.model_dump(exclude_none=True), result]
    second = await client.chat.completions.create(**body)
    assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "done")
    assert trained_text(session) == f"{ANSWER}\x00done\x00"
    with pytest.raises(openai.AuthenticationError, match="episode has ended"):
        await client.chat.completions.create(**body)
    assert session.end_reason is EndReason.MAX_TURNS
    assert len(session.segments) == 1


async def test_streamed_chat_completions(client: "openai.AsyncOpenAI") -> None:
    body: Any = chat_body(user("task"), tools=True)
    stream: Any = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("bash", '{"command": "ls -l"}')
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(deltas) - 1) + ["tool_calls"]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], len(ANSWER) + 1)


async def test_responses(client: "openai.AsyncOpenAI", session: Session) -> None:
    tools: Any = [{"type": "function", **BASH["function"]}]
    given: Any = [{"role": "user", "content": "task"}]
    async with client.responses.stream(model="policy", input=given, tools=tools) as stream:
        kinds = [event.type async for event in stream]
        first = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert first.output_text == "I look."
    call = next(item for item in first.output if item.type == "function_call")
    assert call.arguments == '{"command": "ls -l"}'
    sent = [item.model_dump(exclude_none=True) for item in first.output if item.type != "reasoning"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "total 0"}
    history: Any = [*given, *sent, output]
    second = await client.responses.create(model="policy", input=history, tools=tools)
    assert second.output_text == "done"
    assert len(session.segments) == 1


async def test_responses_that_were_cut() -> None:
    import openai

    async with Gateway(Script("half an ans", stop_reason="length"), ThinkingCodec()) as gateway:
        base_url = f"{gateway.open_session().base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="unused") as client:
            response = await client.responses.create(model="policy", input="task")
        assert (response.status, response.output_text) == ("incomplete", "half an ans")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # litellm's own, about its types
@pytest.mark.parametrize("stream", [False, True])
async def test_messages(session: Session, stream: bool) -> None:
    import litellm  # seconds to import

    messages = [{"role": "system", "content": "Be brief."}, user("task")]
    settings: Any = {"model": "anthropic/policy", "api_base": session.base_url, "api_key": "unused", "tools": [BASH]}
    settings["_skip_mcp_handler"] = True  # which would import a package that is not installed
    answer: Any = await litellm.acompletion(messages=messages, stream=stream, **settings)
    if stream:
        chunks = [chunk async for chunk in answer]
        answer = litellm.stream_chunk_builder(chunks, messages=messages)
    message: Any = answer.choices[0].message
    assert message.content == "I look."
    assert message.tool_calls[0].function.arguments == '{"command": "ls -l"}'
    assert answer.usage.completion_tokens == len(ANSWER) + 1
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "total 0"}
    history = [*messages, message.model_dump(exclude_none=True), result]
    second: Any = await litellm.acompletion(messages=history, **settings)
    assert second.choices[0].message.content == "done"
    assert len(session.segments) == 1
    assert "total 0" in text_of(session.calls[1].prompt)
