"""Chats as tokens: every prompt extends the last one by the sampled tokens, for each renderer that works offline."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harbor_gym.formats import ActionFormat, parse_action
from tests.helpers.chats.tokenizers import CHAT_MARKS, byte_level_tokenizer

pytestmark = pytest.mark.tinker

RENDERERS = (
    *("qwen3", "qwen3_disable_thinking", "qwen3_instruct"),
    *("qwen3_5", "qwen3_5_disable_thinking", "llama3", "role_colon"),
)

CLOSED = '<tool_call>{"name": "bash", "arguments": {"command": "a"}}</tool_call>'

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200).filter(
    lambda text: not any(mark in text for mark in CHAT_MARKS)
)


def make_codec(name: str) -> Any:
    from tinker_cookbook.renderers import get_renderer

    from harbor_gym.adapters.tinker import RendererCodec

    return RendererCodec(get_renderer(name, byte_level_tokenizer()))


def sample(codec: Any, text: str) -> list[int]:
    """A sampler's answer of ``text``: its tokens and the stop."""
    tokenizer = codec.renderer.tokenizer
    stop = codec.stop[0]
    end = [stop] if isinstance(stop, int) else tokenizer.encode(stop, add_special_tokens=False)
    return [*tokenizer.encode(text, add_special_tokens=False), *end]


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct", "llama3"])
def test_the_next_turn_is_what_the_renderer_would_write(name: str) -> None:
    codec = make_codec(name)
    chat: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    prompt = [*codec.prompt(chat)]
    for answer, message in (("one", "two\nlines"), ("three", "four")):
        sampled = sample(codec, answer)
        prompt += [*sampled, *codec.next_turn(sampled, message)]
        chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": message}]
        assert prompt == codec.renderer.build_generation_prompt(chat).to_ints()


@pytest.mark.parametrize("name", RENDERERS)
def test_what_follows_an_answer_does_not_depend_on_how_it_ended(name: str) -> None:
    codec = make_codec(name)
    ended = sample(codec, "answer")
    cut = codec.renderer.tokenizer.encode("answer", add_special_tokens=False)
    decode = codec.renderer.tokenizer.decode
    assert decode([*ended, *codec.next_turn(ended, "next")]) == decode([*cut, *codec.next_turn(cut, "next")])


@pytest.mark.parametrize("name", RENDERERS)
@given(turns=st.lists(st.tuples(plain_text, plain_text), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_message_comes_out_whole(name: str, turns: list[tuple[str, str]]) -> None:
    codec = make_codec(name)
    decode = codec.renderer.tokenizer.decode
    for answer, message in turns:
        sampled = sample(codec, answer)
        following = codec.next_turn(sampled, message)
        assert message.strip() in decode(following)


@pytest.mark.parametrize("name", RENDERERS)
def test_an_answer_is_read_back_without_its_end(name: str) -> None:
    codec = make_codec(name)
    assert codec.text(sample(codec, '{"analysis": "a"}')).strip() == '{"analysis": "a"}'


@pytest.mark.parametrize("name", ["qwen3_instruct", "llama3", "role_colon"])
def test_a_tool_call_is_part_of_the_answer(name: str) -> None:
    codec = make_codec(name)
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    (command,) = parse_action(codec.text(sample(codec, call)), format=ActionFormat.BASH_TOOL).commands
    assert command.keystrokes == "ls\n"


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize(
    "before", ["", "I look.\n", '<tool_call>\n{"name": "bash", "arguments": {"command": "a"}}\n</tool_call>\n']
)
def test_a_tool_call_that_is_not_closed_is_read_once_and_warned_about_as_by_every_door(name: str, before: str) -> None:
    codec = make_codec(name)
    call = f'{before}<tool_call>\n{{"name": "bash", "arguments": {{"command": "ls"}}}}'
    ours = parse_action(codec.text(sample(codec, call)), format=ActionFormat.BASH_TOOL)
    plain = parse_action(call, format=ActionFormat.BASH_TOOL)
    assert ours.warning == plain.warning == "- A <tool_call> was not closed by </tool_call> right after its JSON object"
    assert sorted(item.keystrokes for item in ours.commands) == sorted(item.keystrokes for item in plain.commands)


def test_a_garbled_answer_reads_as_nothing_or_text_but_never_raises() -> None:
    codec = make_codec("qwen3_instruct")
    (stop,) = codec.stop
    assert codec.text([stop, stop]) == ""
    assert codec.text([]) == ""


def test_many_threads_get_the_tokens_that_one_gets() -> None:
    codec = make_codec("qwen3_instruct")
    sampled = sample(codec, "answer")
    chat: list[Any] = [{"role": "system", "content": "s" * 300}, {"role": "user", "content": "<|im_end|> look " * 50}]

    def everything(_: int) -> tuple[list[int], list[int], str]:
        return codec.prompt(chat), codec.next_turn(sampled, "seen " * 200), codec.text(sampled)

    alone = everything(0)
    with ThreadPoolExecutor(8) as pool:
        assert all(result == alone for result in pool.map(everything, range(400)))


def test_thinking_stays_in_the_prompt_and_out_of_the_action(caplog: pytest.LogCaptureFixture) -> None:
    codec = make_codec("qwen3")
    assert codec.off_template
    assert "drops earlier thinking" in caplog.text
    assert codec.text(sample(codec, "<think>hm</think>\n\n{}")).strip() == "{}"
    assert not make_codec("qwen3_instruct").off_template
