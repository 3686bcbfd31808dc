"""A session's key has bounds for any program: calls under any name, and the memory for their prompts."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, override

import pytest

from harbor_gym.errors import SamplerError
from harbor_gym.gateway import Session, SessionLimits, TextConversationCodec
from harbor_gym.gateway.errors import ErrorKind, InvalidRequestError, RequestError, SessionEndedError
from harbor_gym.gateway.wires import ChatCompletionsWire
from harbor_gym.types import EndReason, Sample
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.gateway.clients import chat_body, user
from tests.helpers.patience import eventually

CHAT = ChatCompletionsWire()
LONG = " ".join(map(str, range(5000)))
"""23,889 characters of which no block is like another."""


class Short(TextConversationCodec):
    """Renders every prompt as one token."""

    def __init__(self) -> None:
        super().__init__(CharacterCodec())

    @override
    def render(self, messages: Any, tools: Any) -> list[int]:
        return [1]


async def fine(prompt: Sequence[int]) -> Sample:
    return Sample([*map(ord, "fine"), END], [-1.0] * 5)


def make_session(limits: SessionLimits, sampler: object = fine) -> Session:
    return Session(sampler, TextConversationCodec(CharacterCodec()), model="policy", limits=limits)  # type: ignore[arg-type]


async def ask(session: Session, text: str, model: str = "policy") -> None:
    await session.answer(CHAT.read({**chat_body(user(text)), "model": model}))


async def ask_until_refused(session: Session, *, model: str, text: str = "task") -> int:
    """Return how many requests were answered, of 200 that differ only at their end."""
    for number in range(200):
        try:
            await ask(session, f"{text}{number}", model)
        except SessionEndedError:
            return number
    return 200


@pytest.mark.parametrize(
    ("limits", "answered"),
    [(SessionLimits(max_turns=2), 48), (SessionLimits(max_turns=2, max_calls=5), 5), (SessionLimits(max_calls=3), 3)],
)
async def test_calls_under_another_name_have_a_budget(limits: SessionLimits, answered: int) -> None:
    session = make_session(limits)
    assert await ask_until_refused(session, model="another") == answered
    assert session.end_reason is EndReason.MAX_TURNS
    with pytest.raises(SessionEndedError):
        await ask(session, "task")


async def test_counted_prompts_are_calls() -> None:
    session = make_session(SessionLimits(max_calls=3))
    request = CHAT.read(chat_body(user("task")))
    for _ in range(3):
        await session.count_tokens(request)
    with pytest.raises(SessionEndedError):
        await session.count_tokens(request)
    assert session.end_reason is EndReason.MAX_TURNS


@pytest.mark.parametrize("model", ["policy", "another"])
async def test_prompts_that_are_kept_have_a_budget(model: str) -> None:
    session = make_session(SessionLimits(max_prompt_tokens=90_000))
    for number in range(3):
        await ask(session, LONG.replace(" ", f" {number} "), model)
    with pytest.raises(SessionEndedError):
        await ask(session, "short", model)
    assert session.end_reason is EndReason.MAX_TOKENS


async def test_text_that_no_token_stands_for_is_in_the_budget() -> None:
    session = make_session(SessionLimits(max_prompt_tokens=5000))
    thought = {"role": "assistant", "content": f"<think>{LONG}</think>known"}
    await session.answer(CHAT.read(chat_body(user("a"), thought, user("b"))))
    with pytest.raises(SessionEndedError):
        await ask(session, "short")


async def test_empty_messages_are_in_the_budget() -> None:
    session = make_session(SessionLimits(max_prompt_tokens=50_000))
    await session.answer(CHAT.read(chat_body(*[user("")] * 20_000)))
    with pytest.raises(SessionEndedError):
        await ask(session, "short")


async def test_a_common_beginning_is_kept_once_and_every_prompt_is_exact() -> None:
    """120 prompts of 23,900 tokens with a common beginning grow by their differences."""
    session = make_session(SessionLimits())
    rendered: list[list[int]] = []
    for number in range(120):
        request = CHAT.read({**chat_body(user(f"{LONG}{number}")), "model": "another"})
        answer, call = await session.answer(request)
        rendered.append(list(answer.prompt))
        assert call.prompt == rendered[-1]
    assert [call.prompt for call in session.calls] == rendered
    total = sum(map(len, rendered))
    assert total > 2_860_000
    assert session.metrics["gateway/kept_prompt_tokens"] < len(rendered[0]) + 120 * 300


async def test_equal_messages_are_kept_once() -> None:
    session = make_session(SessionLimits())
    for number in range(3):
        await session.answer(CHAT.read(chat_body(user("".join(["long", " text"])), user(str(number)))))
    first, *others = (call.messages[0] for call in session.calls)
    assert all(other is first for other in others)


@pytest.mark.parametrize("model", ["policy", "another"])
async def test_requests_at_once_do_not_pass_the_budget_and_lose_no_answer(model: str) -> None:
    answering = asyncio.Event()
    asked: list[int] = []

    async def slow(prompt: Sequence[int]) -> Sample:
        asked.append(len(prompt))
        await answering.wait()
        return await fine(prompt)

    session = make_session(SessionLimits(max_turns=2, max_calls=2), slow)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(session, f"task {number}", model)) for number in range(2)]
        await eventually(lambda: len(asked) == 2)
        with pytest.raises(RequestError) as caught:
            await ask(session, "one more", model)
        assert (caught.value.kind, session.end_reason) == (ErrorKind.TOO_MANY_REQUESTS, None)
        answering.set()
    assert all(task.exception() is None for task in tasks)
    with pytest.raises(SessionEndedError):
        await ask(session, "one more", model)
    assert (len(asked), len(session.calls), session.end_reason) == (2, 2, EndReason.MAX_TURNS)


async def test_a_call_that_failed_leaves_its_place() -> None:
    failures = iter([True, True, False])

    async def flaky(prompt: Sequence[int]) -> Sample:
        if next(failures):
            raise OSError("gone")
        return await fine(prompt)

    session = make_session(SessionLimits(max_turns=1), flaky)
    for _ in range(2):
        with pytest.raises(SamplerError):
            await ask(session, "task")
    await ask(session, "task")
    assert session.end_reason is None


async def test_failures_that_are_kept_hold_no_prompt() -> None:
    async def broken(_: Sequence[int]) -> Sample:
        raise OSError("gone")

    session = make_session(SessionLimits(), broken)
    with pytest.raises(SamplerError):
        await ask(session, LONG)
    (failure,) = session.sampler_failures
    assert (failure.__traceback__, failure.__context__) == (None, None), "its frames would keep the prompt"


async def test_the_name_of_a_model_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="model"):
        await ask(make_session(SessionLimits()), "task", "m" * 1000)


def test_the_derived_limits() -> None:
    assert (SessionLimits(max_turns=None).call_limit, SessionLimits().call_limit) == (None, 432)
    assert SessionLimits(max_calls=7, max_turns=50).call_limit == 7
    assert SessionLimits(max_context_tokens=1000, max_turns=50).prompt_token_limit == 1_048_576
    assert SessionLimits(max_context_tokens=100_000, max_turns=50).prompt_token_limit == 5_000_000
    assert SessionLimits(max_context_tokens=100_000, max_turns=2).prompt_token_limit == 1_600_000
    assert SessionLimits(max_prompt_tokens=9).prompt_token_limit == 9


async def test_what_runs_out_while_the_work_is_graded_cut_nothing_and_ends_a_further_step() -> None:
    session = make_session(SessionLimits())
    with session.admitted():
        await ask(session, "task")
    session.end_phase()
    session.end(EndReason.TIME_LIMIT)
    assert session.end_reason is None
    with pytest.raises(SessionEndedError), session.admitted():
        pytest.fail("the further step's agent is refused")
    assert session.end_reason is EndReason.TIME_LIMIT


@pytest.mark.parametrize("count", [1, 3])
async def test_a_request_of_system_messages_alone_is_answered(count: int) -> None:
    session = make_session(SessionLimits())
    body = chat_body(*({"role": "system", "content": f"rule {number}"} for number in range(count)))
    for _ in range(2):
        answer, _ = await session.answer(CHAT.read(body))
        assert answer.parsed.content == "fine"
    assert [call.parent for call in session.calls] == [None, None]


async def test_the_arguments_of_tool_calls_are_text_in_memory() -> None:
    """1,000,000 characters are more than 100,000 tokens of four."""
    session = Session(fine, Short(), model="policy", limits=SessionLimits(max_prompt_tokens=100_000))
    arguments = json.dumps({"text": "x" * 1_000_000})
    call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": arguments}}
    history = [user("go"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    await session.answer(CHAT.read(chat_body(*history, result)))
    with pytest.raises(SessionEndedError):
        await ask(session, "short")
