"""A parameter of a request is honoured, refused, or one of the sampler's own: it is never dropped without a word."""

from collections.abc import Mapping
from typing import Any

import pytest

from harbor_gym.gateway import CallRecord, Session, TextConversationCodec
from harbor_gym.gateway.chat import Answer
from harbor_gym.gateway.errors import InvalidRequestError
from harbor_gym.gateway.wires import ChatCompletionsWire, MessagesWire, ResponsesWire, Wire
from tests.helpers.chats.character_codec import END
from tests.helpers.gateway.clients import BASH, Script, ThinkingCodec, tool_call, user

WIRES: dict[str, Wire] = {"chat": ChatCompletionsWire(), "responses": ResponsesWire(), "messages": MessagesWire()}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
TOOLS: dict[str, Any] = {
    "chat": [BASH],
    "responses": [{"type": "function", **BASH["function"]}],
    "messages": [{"name": "bash", "input_schema": BASH["function"]["parameters"]}],
}
NAMED = {"type": "function", "function": {"name": "bash"}}

REFUSED: list[tuple[str, Mapping[str, Any], str]] = [
    ("chat", {"functions": [BASH["function"]]}, "functions is not supported: declare tools"),
    ("chat", {"function_call": "auto"}, "function_call is not supported: declare tools"),
    ("chat", {"response_format": {"type": "json_object"}}, "response_format of type 'json_object' is not supported"),
    ("chat", {"response_format": SCHEMA}, "response_format of type 'json_schema' is not supported"),
    ("chat", {"response_format": "json"}, "response_format must be an object"),
    ("chat", {"tool_choice": "required"}, "tool_choice must be 'auto' or 'none', got 'required'"),
    ("chat", {"tool_choice": NAMED}, "tool_choice must be"),
    ("chat", {"stop": ["\n"]}, "stop is not supported"),
    ("chat", {"stop": "x"}, "stop is not supported"),
    ("chat", {"logit_bias": {"5": -100}}, "logit_bias is not supported"),
    ("chat", {"guided_json": {"type": "object"}}, "guided_json is not supported"),
    ("chat", {"structured_outputs": {"choice": ["a"]}}, "structured_outputs is not supported"),
    ("chat", {"regex": "[ab]"}, "regex is not supported"),
    ("chat", {"ebnf": "root ::= [ab]"}, "ebnf is not supported"),
    ("responses", {"json_schema": "{}"}, "json_schema is not supported"),
    ("chat", {"allowed_token_ids": [5]}, "allowed_token_ids is not supported"),
    ("chat", {"stop_token_ids": [5]}, "stop_token_ids is not supported"),
    ("chat", {"continue_final_message": True}, "continue_final_message is not supported"),
    ("chat", {"n": 2}, "n must be 1"),
    ("responses", {"text": {"format": {"type": "json_object"}}}, "text.format of type 'json_object' is not supported"),
    ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format of type 'json_schema' is not supported"),
    ("responses", {"tool_choice": "required"}, "tool_choice must be"),
    ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice must be"),
    ("responses", {"logit_bias": {"5": 1}}, "logit_bias is not supported"),
    ("messages", {"tool_choice": {"type": "any"}}, "tool_choice must be 'auto' or 'none', got {'type': 'any'}"),
    ("messages", {"tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice must be"),
    ("messages", {"stop_sequences": ["x"]}, "stop_sequences is not supported"),
    ("messages", {"output_format": {"type": "json_schema"}}, "output_format of type 'json_schema' is not supported"),
    ("messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format of type 'json_schema'"),
    ("messages", {"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"),
]

ACCEPTED: list[tuple[str, Mapping[str, Any]]] = [
    ("chat", {"tool_choice": "auto", "response_format": {"type": "text"}, "stop": None, "logit_bias": {}, "n": 1}),
    ("chat", {"temperature": 0.5, "top_p": 0.9, "seed": 7, "presence_penalty": 1.0, "max_tokens": 9}),
    ("chat", {"functions": [], "stop": [], "function_call": None, "parallel_tool_calls": True}),
    ("responses", {"tool_choice": "auto", "text": {"format": {"type": "text"}, "verbosity": "low"}, "store": False}),
    ("responses", {"temperature": 0.5, "reasoning": {"effort": "high"}, "include": [], "background": False}),
    ("messages", {"tool_choice": {"type": "auto"}, "stop_sequences": [], "output_config": {"effort": "high"}}),
    ("messages", {"temperature": 1.0, "top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
]


def body_of(wire: str, **parameters: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [user("task")], "input": "task", "tools": TOOLS[wire], **parameters}


async def ask(wire: str, *script: str, **parameters: Any) -> tuple[Session, Answer, CallRecord]:
    session = Session(Script(*script), TextConversationCodec(ThinkingCodec()), model="policy")
    answer, call = await session.answer(WIRES[wire].read(body_of(wire, **parameters)))
    return session, answer, call


@pytest.mark.parametrize(("wire", "parameters", "words"), REFUSED)
def test_it_is_refused(wire: str, parameters: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        WIRES[wire].read(body_of(wire, **parameters))
    assert words in str(refused.value)
    assert WIRES[wire].error(refused.value)[0] == 400


@pytest.mark.parametrize(("wire", "parameters"), ACCEPTED)
def test_what_says_nothing_and_what_is_the_samplers_own_is_accepted(wire: str, parameters: Mapping[str, Any]) -> None:
    assert WIRES[wire].read(body_of(wire, **parameters)).max_calls is None


def test_a_legacy_call_in_the_history_is_refused() -> None:
    history = [user("task"), {"role": "assistant", "function_call": {"name": "bash", "arguments": "{}"}}, user("go on")]
    with pytest.raises(InvalidRequestError, match="function_call is not supported: send tool_calls"):
        WIRES["chat"].read(body_of("chat", messages=history))


NO_CALLS: dict[str, Any] = {"chat": "none", "responses": "none", "messages": {"type": "none"}}


@pytest.mark.parametrize("wire", WIRES)
async def test_without_calls_the_answer_is_text_and_goes_on(wire: str) -> None:
    call_text = tool_call(command="ls")
    session, answer, call = await ask(wire, call_text, "more", tool_choice=NO_CALLS[wire])
    assert (answer.parsed.tool_calls, answer.parsed.content.strip()) == ((), call_text)
    history = [user("task"), {"role": "assistant", "content": answer.parsed.content}, user("go on")]
    _, second = await session.answer(WIRES[wire].read(body_of(wire, messages=history, input=history)))
    assert second.parent is call


ONE_CALL: dict[str, dict[str, Any]] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}


@pytest.mark.parametrize("wire", WIRES)
async def test_without_parallel_calls_the_first_is_the_answer(wire: str) -> None:
    two = tool_call(command="ls") + "\n" + tool_call(command="pwd")
    _, answer, call = await ask(wire, two, **ONE_CALL[wire])
    assert [call.arguments for call in answer.parsed.tool_calls] == ['{"command": "ls"}']
    assert list(call.sampled) == [*map(ord, two), END], "what was sampled is recorded as it is"
    _, answer, _ = await ask(wire, two)
    assert len(answer.parsed.tool_calls) == 2
