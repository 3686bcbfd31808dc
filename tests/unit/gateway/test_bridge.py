"""A request that goes on from an answer extends its tokens, after any edit of the history by clients."""

import copy
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.gateway import BreakReason, CallKind, Session, TextConversationCodec
from harbor_gym.gateway.chat import Answer
from harbor_gym.gateway.errors import InvalidRequestError
from harbor_gym.gateway.wires import ChatCompletionsWire, MessagesWire, ResponsesWire
from tests.helpers.gateway.clients import Script, ThinkingCodec, chat_body, text_of, tool_call, trained_text, user

CHAT, MESSAGES, RESPONSES = ChatCompletionsWire(), MessagesWire(), ResponsesWire()

WORDS = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=12)
"""Any text: empty, blank, with tags, in any script."""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.dictionaries(WORDS, VALUES, max_size=3).map(lambda arguments: f"\n{tool_call('bash', **arguments)}\n")
THOUGHTS = st.just("") | WORDS.map(lambda text: f"<think>\n{text.replace('<', '')}\n</think>\n\n")


@st.composite
def answers(draw: st.DrawFn) -> str:
    """One sampled message: thinking or none, text, and calls."""
    calls = draw(st.lists(CALLS, max_size=3))
    return draw(THOUGHTS) + draw(WORDS).replace("<", "") + "".join(calls)


def make_session(*script: str, **settings: Any) -> tuple[Session, Script]:
    policy = Script(*script)
    return Session(policy, TextConversationCodec(ThinkingCodec()), model="policy", **settings), policy


class ChatClient:
    """An agent that speaks chat completions and sends its history back as the seed has it: never quite as it came."""

    def __init__(self, session: Session, seed: int, *messages: dict[str, Any]) -> None:
        self.session, self.random = session, random.Random(seed)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, *messages]

    async def ask(self) -> Answer:
        body = chat_body(*self.messages, tools=True)
        answer, _ = await self.session.answer(CHAT.read(json.loads(json.dumps(body))))
        message = CHAT.plain(body, answer)["choices"][0]["message"]
        self.messages.append(self._mangled(message))
        return answer

    def go_on(self, texts: list[str]) -> None:
        """Answer every call of the last message, then add user messages."""
        calls = self.messages[-1].get("tool_calls") or []
        for index, call in enumerate(calls):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"result {index}"})
        self.messages += [user(text) for text in texts]

    def _mangled(self, message: dict[str, Any]) -> dict[str, Any]:
        message = copy.deepcopy(message)
        if self.random.random() < 0.5:
            message.pop("reasoning_content", None)
        for call in message.get("tool_calls", []):
            if self.random.random() < 0.5:
                call["id"] = f"toolu_{self.random.random()}"
            arguments = list(json.loads(call["function"]["arguments"]).items())
            self.random.shuffle(arguments)
            indent = self.random.choice([None, 2])
            ascii_only = self.random.random() < 0.5
            call["function"]["arguments"] = json.dumps(dict(arguments), indent=indent, ensure_ascii=ascii_only)
        if self.random.random() < 0.3 and message["content"]:
            part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
            message["content"] = [part]
        return message


@given(st.lists(st.tuples(answers(), st.lists(WORDS, min_size=1, max_size=3)), min_size=1, max_size=5), st.integers())
async def test_each_prompt_extends_the_last(turns: list[tuple[str, list[str]]], seed: int) -> None:
    session, policy = make_session(*(answer for answer, _ in turns))
    client = ChatClient(session, seed, user("task"))
    for _, texts in turns:
        answer = await client.ask()
        client.go_on(texts)
        for last in session.calls[-2:-1]:
            extended = [*last.prompt, *last.sampled]
            assert answer.prompt[: len(extended)] == extended
    (segment,) = session.segments
    assert set(session.kinds.values()) == {CallKind.MAIN}
    assert not session.breaks
    assert trained_text(session) == "".join(f"{answer}\x00" for answer, _ in turns)
    assert segment.token_ids == [*policy.prompts[-1], *session.calls[-1].sampled]
    assert all((logprob < 0) == bool(own) for logprob, own in zip(segment.logprobs, segment.mask, strict=True))


@given(st.lists(answers(), min_size=2, max_size=5), st.data())
async def test_an_edited_history_opens_a_segment(script: list[str], data: st.DataObject) -> None:
    session, _ = make_session(*script, "last")
    client = ChatClient(session, 0, user("task"))
    for _ in script:
        await client.ask()
        client.go_on(["go on"])
    # All that precedes the last answer; behind it there is nothing that was answered yet.
    last_answer = max(i for i, message in enumerate(client.messages) if message["role"] == "assistant")
    edited = data.draw(st.integers(1, last_answer))
    client.messages[edited]["content"] = "something else that nobody wrote"
    await client.ask()
    first, second = session.trained_segments
    assert first.calls == tuple(range(len(script)))
    assert second.calls == (len(script),)
    assert trained_text(session).endswith("last\x00")
    assert sum(session.breaks.values()) == 1


async def test_a_stripped_thought_stays_in_the_prompt() -> None:
    session, policy = make_session("<think>\nsecret plan\n</think>\n\nfirst", "second")
    client = ChatClient(session, 0, user("task"))
    answer = await client.ask()
    assert (answer.parsed.content, answer.parsed.reasoning) == ("first", "secret plan")
    client.messages[-1] = {"role": "assistant", "content": "first"}
    client.go_on(["more"])
    await client.ask()
    assert "secret plan" in policy.shown[1]
    assert len(session.segments) == 1


async def test_a_session_of_another_codec_sees_no_thought_when_rendered() -> None:
    session, policy = make_session("answer")
    history = [user("a"), {"role": "assistant", "content": "<think>old</think>kept"}, user("b")]
    await session.answer(CHAT.read(chat_body(*history)))
    assert "kept" in policy.shown[0]


async def test_a_repeated_request_replaces_an_answer_that_nobody_used() -> None:
    session, policy = make_session("one", "lost", "used", "end")
    client = ChatClient(session, 0, user("task"))
    await client.ask()
    client.go_on(["more"])
    history = list(client.messages)
    await client.ask()
    client.messages = history  # the answer was lost: the client asks again
    await client.ask()
    client.go_on(["and more"])
    await client.ask()
    assert policy.prompts[1] == policy.prompts[2]
    kinds = {segment.calls: session.kinds[segment.calls[-1]] for segment in session.segments}
    assert kinds == {(0, 2, 3): CallKind.MAIN, (1,): CallKind.ABANDONED}
    assert [segment.calls for segment in session.used_segments] == [(0, 2, 3)]
    assert trained_text(session) == "one\x00used\x00end\x00"
    assert not session.breaks


async def test_a_first_request_repeated() -> None:
    session, policy = make_session("lost", "used")
    for _ in range(2):
        await session.answer(CHAT.read(chat_body(user("task"))))
    assert policy.prompts[0] == policy.prompts[1]
    assert trained_text(session) == "used\x00"


async def test_two_branches_train_a_common_answer_once() -> None:
    session, _ = make_session("root", "left", "right", "left again")
    client = ChatClient(session, 0, user("task"))
    await client.ask()
    root = list(client.messages)
    client.go_on(["left"])
    await client.ask()
    left = list(client.messages)
    client.messages = [*root, user("right")]
    await client.ask()
    client.messages = [*left, user("left")]
    await client.ask()
    first, second = session.trained_segments
    assert (first.calls, second.calls) == ((0, 1, 3), (2,))
    assert text_of(second.completion) == "right\x00"
    assert "root" in text_of(second.prompt)


async def test_a_nested_sub_agent_is_recorded_apart() -> None:
    session, _ = make_session("call agent", "sub one", "sub two", "done")
    main = ChatClient(session, 0, user("task"))
    await main.ask()
    nested = ChatClient(session, 0, user("look"))
    nested.messages[0]["content"] = "You are a sub-agent."
    await nested.ask()
    nested.go_on(["on"])
    await nested.ask()
    main.go_on(["the sub-agent found it"])
    await main.ask()
    kinds = {segment.calls: session.kinds[segment.calls[-1]] for segment in session.segments}
    assert kinds == {(0, 3): CallKind.MAIN, (1, 2): CallKind.SIDE}
    assert [segment.calls for segment in session.used_segments] == [(0, 3), (1, 2)]
    assert trained_text(session) == "call agent\x00done\x00"
    assert not session.breaks


async def test_titles_are_side_calls() -> None:
    """One without tools before the main conversation, and one to another model."""
    session, _ = make_session("a title", "work", "small talk", "more")
    await session.answer(CHAT.read(chat_body(user("make a title"))))
    await session.answer(CHAT.read(chat_body(user("task"), tools=True)))
    await session.answer(CHAT.read({**chat_body(user("task"), tools=True), "model": "small"}))
    await session.answer(CHAT.read({**chat_body(user("task"), tools=True), "model": "nopolicy"}))
    assert list(session.kinds.values()) == [CallKind.SIDE, CallKind.MAIN, CallKind.SIDE, CallKind.SIDE]
    assert trained_text(session) == "work\x00"


async def test_a_provider_before_the_models_name() -> None:
    session, _ = make_session("one")
    await session.answer(CHAT.read({**chat_body(user("task")), "model": "anthropic/policy"}))
    assert len(session.trained_segments) == 1


async def test_reasons_of_breaks() -> None:
    session, _ = make_session(*"abcdefgh")
    first = user("task")
    await session.answer(CHAT.read(chat_body(first)))
    await session.answer(CHAT.read(chat_body(user("a summary of it all"))))
    await session.answer(CHAT.read(chat_body(first, {"role": "assistant", "content": "edited"}, user("on"))))
    own = {"role": "assistant", "content": "a"}
    foreign = {"role": "assistant", "content": "not sampled here"}
    await session.answer(CHAT.read(chat_body(first, own, user("on"), foreign, user("on"))))
    await session.answer(CHAT.read(chat_body(first, own, user("on"), tools=True)))
    assert [call.break_reason for call in session.calls][-1] is BreakReason.TOOLS_CHANGED
    assert session.breaks == {
        BreakReason.NEW_CONVERSATION: 1,
        BreakReason.HISTORY_EDITED: 1,
        BreakReason.FOREIGN_ANSWER: 1,
        BreakReason.TOOLS_CHANGED: 1,
    }
    assert session.metrics["gateway/breaks/history_edited"] == 1
    assert set(session.kinds.values()) == {CallKind.MAIN}


async def test_a_sampler_without_logprobs() -> None:
    session, policy = make_session()

    async def sample(prompt: list[int]) -> Any:
        policy.answers.append("text")
        made = await policy(prompt)
        return type(made)(made.tokens)

    session._sampler = sample  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]  # the shortest way
    await session.answer(CHAT.read(chat_body(user("task"))))
    (segment,) = session.segments
    assert all(math.isnan(logprob) == bool(own) for logprob, own in zip(segment.logprobs, segment.mask, strict=True))


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]])
async def test_conversations_that_cannot_be_answered(messages: list[dict[str, Any]]) -> None:
    session, _ = make_session()
    with pytest.raises(InvalidRequestError):
        await session.answer(CHAT.read(chat_body(*messages)))


async def test_an_anthropic_client_that_moves_its_cache_marks() -> None:
    session, policy = make_session("<think>hm</think>I look." + tool_call(command="ls"), "done")
    tools = [{"name": "bash", "description": "d", "input_schema": {"type": "object"}}]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    first = {"role": "user", "content": [{"type": "text", "text": "task", "cache_control": {"type": "ephemeral"}}]}
    body: dict[str, Any] = {"model": "policy", "system": system, "tools": tools, "messages": [first]}
    answer, _ = await session.answer(MESSAGES.read(body))
    blocks = MESSAGES.plain(body, answer)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    system[0]["text"] = "x-anthropic-billing-header: cch=2;"
    result = {"type": "tool_result", "tool_use_id": blocks[2]["id"], "content": [{"type": "text", "text": "a b"}]}
    body["messages"] = [
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": blocks[1:]},
        {"role": "user", "content": [result, {"type": "text", "text": "remember"}]},
    ]
    await session.answer(MESSAGES.read(body))
    assert len(session.segments) == 1
    assert policy.shown[1].endswith("<tool_response>\na b\n</tool_response>\nremember\x00\x01")


async def test_a_responses_client_that_sends_items_back() -> None:
    session, _ = make_session(
        "<think>hm</think>I look." + tool_call(command="ls") + tool_call("patch", input="*** x"), "ok"
    )
    tools = [
        {"type": "function", "name": "bash", "parameters": {}},
        {"type": "custom", "name": "patch", "description": "p"},
        {"type": "web_search"},
    ]
    given: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    ]
    body = {"model": "policy", "instructions": "Be brief.", "tools": tools, "input": given}
    answer, _ = await session.answer(RESPONSES.read(body))
    items = RESPONSES.plain(body, answer)["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert items[3]["input"] == "*** x"
    outputs = [
        {"type": "function_call_output", "call_id": items[2]["call_id"], "output": "f"},
        {"type": "custom_tool_call_output", "call_id": items[3]["call_id"], "output": "patched"},
    ]
    await session.answer(RESPONSES.read({**body, "input": [*given, *items[1:], *outputs]}))
    assert len(session.segments) == 1


async def test_the_main_conversation_reads_turn_by_turn() -> None:
    call = tool_call("bash", command="ls")
    session, _ = make_session("a title", f"<think>\nhm\n</think>\n\nI look.\n{call}", "Done.", "Again.")
    await session.answer(CHAT.read({"model": "small", "messages": [user("a title, please")]}))
    client = ChatClient(session, 0, user("Do it."))
    await client.ask()
    client.go_on([])
    await client.ask()
    client.messages = [{"role": "system", "content": "Be brief."}, user("edited"), *client.messages[2:], user("more")]
    await client.ask()
    assert [(turn.observation, turn.action) for turn in session.turns] == [
        ("Do it.", f"I look.\n{call}"),
        ("result 0", "Done."),
        ("more", "Again."),
    ]
    calls = session.calls[1:]
    assert [turn.prompt_tokens for turn in session.turns] == [len(call.prompt) for call in calls]
    assert [turn.sampled_tokens for turn in session.turns] == [len(call.sampled) for call in calls]
