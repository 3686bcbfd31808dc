"""HFCodec: each prompt extends the last one token by token, or the break is detected, counted and reported."""

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harbor_gym import AsyncTerminalGymEnv, TokenTerminalEnv
from harbor_gym.codecs import HFCodec
from harbor_gym.errors import UsageError
from tests.helpers.chats import chat_templates
from tests.helpers.chats.tokenizers import CHAT_MARKS, byte_level_tokenizer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5": (chat_templates.QWEN2_5, {}),
    "qwen3": (chat_templates.QWEN3, {}),
    "qwen3 without thinking": (chat_templates.QWEN3, {"enable_thinking": False}),
    "qwen3 that opens thinking": (chat_templates.QWEN3_THINKING, {}),
    "llama3": (chat_templates.LLAMA3, {}),
    "embedded policy": (chat_templates.embedded_policys(), {}),
}
KEEPING = ("qwen2.5", "llama3", "embedded policy")
"""Templates that write an earlier answer as it was sampled."""

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=80).filter(
    lambda value: not any(mark in value for mark in CHAT_MARKS)
)
answer = st.one_of(
    text,
    st.builds("<think>\n{}\n</think>\n\n{}".format, text, text),
    st.builds("{}</think>{}".format, text, text),
    st.sampled_from(["<think>never closed", " blanks around ", "", '<tool_call>{"name": "bash"}</tool_call>']),
)


def make_codec(name: str, **settings: Any) -> HFCodec:
    template, own = TEMPLATES[name]
    return HFCodec(byte_level_tokenizer(), template, **own, **settings)


def encode(value: str) -> list[int]:
    return byte_level_tokenizer().encode(value, add_special_tokens=False)


def decode(tokens: Sequence[int]) -> str:
    return byte_level_tokenizer().decode(tokens, skip_special_tokens=False)


def rendered(codec: HFCodec, chat: list[Any]) -> list[int]:
    """The template's text of a whole chat."""
    return codec.prompt(chat)


def sampled(codec: HFCodec, value: str) -> list[int]:
    return [*encode(value), codec.stop[0]]


@pytest.mark.parametrize("name", TEMPLATES)
@given(turns=st.lists(st.tuples(answer, text), min_size=1, max_size=4), system=text)
@settings(max_examples=15)
def test_a_prompt_is_the_templates_own_or_the_break_is_detected(
    name: str, turns: list[tuple[str, str]], system: str
) -> None:
    codec = make_codec(name)
    chat: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": "task"}]
    prompt, breaks = codec.prompt(chat), 0
    opening = "<think>\n" if name == "qwen3 that opens thinking" else ""
    for value, following in turns:
        tokens = sampled(codec, value)
        extended = [*prompt, *tokens, *codec.next_turn(tokens, following)]
        assert extended[: len(prompt) + len(tokens)] == prompt + tokens
        prompt = extended
        chat += [{"role": "assistant", "content": opening + value}, {"role": "user", "content": following}]
        breaks += codec.is_off_template(tokens)
    assert (decode(prompt) == decode(rendered(codec, chat))) is (breaks == 0)


@pytest.mark.parametrize("name", KEEPING)
@settings(max_examples=20)
@given(turns=st.lists(st.tuples(st.text("abc {}\n", min_size=1), text), min_size=1, max_size=3))
def test_where_the_template_keeps_answers_the_tokens_are_the_templates(name: str, turns: list[tuple[str, str]]) -> None:
    codec = make_codec(name)
    chat: list[Any] = [{"role": "user", "content": "task"}]
    prompt = codec.prompt(chat)
    for value, following in turns:
        tokens = sampled(codec, value.strip())
        prompt += [*tokens, *codec.next_turn(tokens, following)]
        chat += [{"role": "assistant", "content": value.strip()}, {"role": "user", "content": following}]
    assert not codec.off_template
    assert prompt == rendered(codec, chat)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in KEEPING])
def test_a_template_that_drops_thinking_is_reported_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert make_codec(name).off_template
    assert [record.message for record in caplog.records if "writes earlier answers differently" in record.message]


def test_only_turns_that_the_template_would_rewrite_are_off_template() -> None:
    codec = make_codec("qwen3")
    assert not codec.is_off_template(sampled(codec, "plain"))
    assert codec.is_off_template(sampled(codec, "<think>\nhm\n</think>\n\nplain"))
    assert make_codec("qwen3 without thinking").is_off_template(sampled(codec, "plain"))
    llama = make_codec("llama3")
    assert llama.is_off_template(sampled(llama, " trimmed ")), "the template trims"


async def test_an_episode_reports_how_many_turns_are_off_template(tmp_path: Path) -> None:
    codec = make_codec("qwen3")
    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), codec, max_tokens=50)
    for _ in range(2):
        await env.reset()
        for thinking in ("", "<think>hm</think>", "<think>hm</think>"):
            await env.step(sampled(codec, thinking + message("true\n")))
        last = await env.step(sampled(codec, "<think>the last one is never history</think>" + COMPLETE))
        assert (last.done, last.info["metrics"]["off_template_turns"]) == (True, 2)
    await env.close()


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (chat_templates.LAST_ONLY, "an earlier answer is left out"),
        (chat_templates.ECHOING, "followed by something that depends on it"),
        (chat_templates.COUNTING, "depends on the message after it"),
        (chat_templates.REFUSING, "System role not supported"),
        ("{{- messages[9].content.x -}}", "can't write a task"),
    ],
)
def test_a_template_that_cant_be_continued_is_refused(template: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        HFCodec(byte_level_tokenizer(), template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_follows_does_not_depend_on_how_the_answer_ended(name: str) -> None:
    codec = make_codec(name)
    whole, cut = sampled(codec, "answer"), encode("answer")
    assert [*whole, *codec.next_turn(whole, "next")] == [*cut, *codec.next_turn(cut, "next")]


@pytest.mark.parametrize(
    ("written", "thinking", "output"),
    [
        ("plain", "", "plain"),
        ("<think>\nhm\n</think>\n\nls", "hm", "ls"),
        ("\n<think>a</think>b", "a", "b"),
        ("<think>never closed <tool_call>", "never closed <tool_call>", ""),
        ("echo '</think>'", "", "echo '</think>'"),
        ("", "", ""),
    ],
)
def test_thinking_is_no_part_of_the_answer(written: str, thinking: str, output: str) -> None:
    codec = make_codec("qwen3")
    for tokens in (sampled(codec, written), encode(written)):
        assert (codec.reasoning(tokens), codec.text(tokens)) == (thinking, output)


def test_thinking_that_the_template_opened_ends_at_its_mark() -> None:
    codec = make_codec("qwen3 that opens thinking")
    tokens = sampled(codec, "hm\n</think>\n\nls")
    assert (codec.reasoning(tokens), codec.text(tokens)) == ("hm", "ls")
    assert codec.text(sampled(codec, "never closed")) == ""


def test_a_stop_token_that_the_template_does_not_write_stays_in_the_prompt() -> None:
    codec = make_codec("qwen3", stop_token_ids=encode("<|im_end|><|endoftext|>"))
    tokens = encode("x<|endoftext|>")
    assert codec.text(tokens) == "x"
    assert decode(codec.next_turn(tokens, "next")).startswith("<|im_end|>\n")


def test_tools_are_declared_by_the_template_and_answered_in_their_role() -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    codec = make_codec("qwen2.5", tools=tools)
    assert '"name": "bash"' in decode(codec.prompt([{"role": "user", "content": "task"}]))
    tokens = sampled(codec, "call")
    results = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    following = decode(codec.next_messages(tokens, results))
    assert following == (
        "\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_codec_pickles(name: str) -> None:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    codec = make_codec(name, tools=tools, stop_token_ids=encode("<|im_end|><|endoftext|>"))
    copied = pickle.loads(pickle.dumps(codec))
    assert copied.stop == codec.stop
    chat: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "task"}]
    assert copied.prompt(chat) == codec.prompt(chat)
    tokens = sampled(codec, "<think>\nhm\n</think>\n\nyes")
    assert copied.next_turn(tokens, "more") == codec.next_turn(tokens, "more")
    assert copied.text(tokens) == codec.text(tokens)


def test_stop_tokens_are_the_ends_that_the_template_and_the_tokenizer_know() -> None:
    assert make_codec("qwen3").stop == encode("<|im_end|>")
    assert make_codec("llama3").stop == encode("<|eot_id|><|im_end|>")


def test_many_threads_get_the_tokens_that_one_gets() -> None:
    codec = make_codec("qwen3")
    tokens = sampled(codec, "answer")
    chat: list[Any] = [{"role": "user", "content": "<|im_end|> look " * 50}]

    def everything(_: int) -> tuple[list[int], list[int], str]:
        return codec.prompt(chat), codec.next_turn(tokens, "seen " * 100), codec.text(tokens)

    alone = everything(0)
    with ThreadPoolExecutor(8) as pool:
        assert all(result == alone for result in pool.map(everything, range(200)))
