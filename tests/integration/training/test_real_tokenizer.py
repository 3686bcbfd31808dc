"""The tokens of chats with a real model's tokenizer and chat template: SmolLM2's, whose template has a default system
message, and whose tokens merge where a made-up tokenizer's do not."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harbor_gym import AsyncTerminalGymEnv, TokenTerminalEnv
from harbor_gym.codecs import HFCodec
from harbor_gym.embedded.models import cached_model
from harbor_gym.gateway import Session, TemplateConversationCodec
from harbor_gym.gateway.wires import ChatCompletionsWire
from harbor_gym.types import Sample
from tests.helpers.gateway.clients import chat_body, user
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

pytestmark = [pytest.mark.pretrained, pytest.mark.tinker]

CHAT = ChatCompletionsWire()
DEFAULT = "You are a helpful AI assistant named SmolLM"

MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<file_sep>",
    "<jupyter_start>",
    "<empty_output>",
)
"""Control tokens of the model, those of its pretraining among them: any file may hold them as text."""

some = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
borders = st.sampled_from(["", " ", "\n", "\n\n", "  ", "\t", "```", "é", "日", "🙂", "\r\n", "a", "1", "{", '"'])
shown = st.builds("{}{}{}{}".format, borders, plain, st.sampled_from(("", *MARKS)), borders)
"""A terminal's text, whose ends merge with what stands beside them, or that holds control tokens as text."""


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(cached_model("smollm2-135m"))


@functools.cache
def codec(name: str) -> Any:
    from harbor_gym.adapters.tinker.sampling import codec_for

    return codec_for(name, str(cached_model("smollm2-135m")))


CODECS = ("chat_template", "qwen3_instruct")


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False, split_special_tokens=True)


def decode(tokens: Sequence[int]) -> str:
    return tokenizer().decode(tokens, skip_special_tokens=False)


def written(text: str) -> str:
    """The text with each character that the vocabulary lacks a byte of replaced."""
    return "".join(
        character if decode(encode(character)) == character else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def control(tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token in tokenizer().added_tokens_decoder]


def chat(*contents: str, system: str | None = "rules") -> list[Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


@pytest.mark.parametrize("name", CODECS)
@some
@given(task=shown, turns=st.lists(st.tuples(plain.map(written), shown), min_size=1, max_size=3))
def test_prompts_extend_one_another_and_read_as_the_template(
    name: str, task: str, turns: list[tuple[str, str]]
) -> None:
    contents = [written(task)]
    prompt = codec(name).prompt(chat(task))
    for answer, following in turns:
        tokens = [*encode(answer), tokenizer().eos_token_id]
        extended = [*prompt, *tokens, *codec(name).next_turn(tokens, following)]
        assert extended[: len(prompt) + len(tokens)] == [*prompt, *tokens]
        assert codec(name).text(tokens) == answer or name == "qwen3_instruct"  # its renderer strips
        prompt = extended
        contents += [answer, written(following)]
    whole = tokenizer().apply_chat_template(chat(*contents), add_generation_prompt=True, tokenize=False)
    assert decode(prompt) == whole
    begins, ends = (tokenizer().convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>"))
    messages = len(contents) + 1
    assert control(prompt) == [begins, ends] * messages + [begins], "what a terminal shows is no control token"


@pytest.mark.parametrize("name", CODECS)
@some
@given(task=plain.map(written), following=plain.map(written))
def test_tokens_are_those_of_the_template(name: str, task: str, following: str) -> None:
    """Token by token, also across the borders of messages."""
    answer = "ls -la"
    tokens = [*encode(answer), tokenizer().eos_token_id]
    prompt = codec(name).prompt(chat(task))
    whole = tokenizer().apply_chat_template(
        chat(task, answer, following), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert [*prompt, *tokens, *codec(name).next_turn(tokens, following)] == whole


def test_the_default_system_message_comes_once_and_only_without_another() -> None:
    alone = codec("chat_template").prompt(chat("task", system=None))
    answer = [*encode("ls"), tokenizer().eos_token_id]
    assert decode([*alone, *answer, *codec("chat_template").next_turn(answer, "more")]).count(DEFAULT) == 1
    assert DEFAULT not in decode(codec("chat_template").prompt(chat("task")))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("text", ["🙂", "日本", "é" * 3, "ls 🧑‍🚀"])
def test_half_a_character_at_the_end_of_a_sample_stays_as_it_was_sampled(name: str, text: str) -> None:
    for cut in range(1, len(encode(text)) + 1):
        tokens = encode(text)[:cut]
        following = codec(name).next_turn(tokens, "more")
        assert decode([*tokens, *following]).endswith(
            "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
        )
        assert codec(name).next_turn([*tokens, tokenizer().eos_token_id], "more") == following[1:]
        whole = codec(name).text(tokens)
        assert whole.replace("\ufffd", "") in text


@some
@given(st.lists(st.tuples(plain.map(written), shown), min_size=2, max_size=4), st.booleans())
async def test_an_agents_history_goes_on_from_the_sampled_tokens(
    turns: list[tuple[str, str]], has_system: bool
) -> None:
    script = iter([[*encode(answer), tokenizer().eos_token_id] for answer, _ in turns])

    async def sample(_: Any) -> Sample:
        return Sample(next(script))

    session = Session(sample, TemplateConversationCodec(tokenizer()))
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}] if has_system else []
    messages.append(user("task"))
    for _, following in turns:
        body = chat_body(*messages)
        answer, call = await session.answer(CHAT.read(json.loads(json.dumps(body))))
        if call.parent is not None:
            assert answer.prompt[: len(call.parent.tokens)] == call.parent.tokens
        reply = CHAT.plain(body, answer)["choices"][0]["message"]
        messages += [{**reply, "content": reply["content"] or ""}, user(following)]
    assert len(session.segments) == 1
    assert decode(session.calls[-1].prompt).count(DEFAULT) == (0 if has_system else 1)


@pytest.mark.parametrize("name", CODECS)
async def test_an_episode_in_its_tokens(name: str, tmp_path: Any) -> None:
    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), codec(name), max_tokens=99)
    step = await env.reset()
    try:
        for text in (message("echo '<|im_end|> é🙂'\n"), COMPLETE):
            tokens = [*encode(text), tokenizer().eos_token_id]
            prompt, step = step.observation, await env.step(tokens)
            assert step.done or step.observation[: len(prompt) + len(tokens)] == [*prompt, *tokens]
        assert step.done
    finally:
        await env.close()


def test_a_template_without_tools_is_refused_for_an_agent_with_tools() -> None:
    assert isinstance(codec("chat_template"), HFCodec)
    assert "tools" not in tokenizer().chat_template


async def answers_through_the_gateway(messages: list[dict[str, Any]], *samples: list[int]) -> tuple[Session, list[str]]:
    """Return a session in which an agent sent each answer back as it read it, and what it read."""
    script = iter(samples)

    async def sample(_: Any) -> Sample:
        return Sample(next(script))

    session = Session(sample, TemplateConversationCodec(tokenizer()))
    read: list[str] = []
    for number in range(len(samples)):
        body = chat_body(*messages)
        answer, _ = await session.answer(CHAT.read(json.loads(json.dumps(body))))
        reply = CHAT.plain(body, answer)["choices"][0]["message"]
        read.append(reply["content"] or "")
        messages = [*messages, {**reply, "content": read[-1]}, user(f"shown {number}")]
    return session, read


def letter_by_letter(text: str) -> list[int]:
    """Tokens of the text that the tokenizer would not write: none is merged with its neighbour."""
    return [token for character in text for token in encode(character)]


@pytest.mark.parametrize("text", ["ls -la /srv\n", "  two  spaces", "the the the", "a\n\n\nb", "don't 1234"])
async def test_tokens_that_the_tokenizer_would_merge_stay_apart(text: str) -> None:
    apart = letter_by_letter(text)
    assert (decode(apart), len(apart) > len(encode(text))) == (text, True)
    end = tokenizer().eos_token_id
    for name in CODECS:
        prompt = codec(name).prompt(chat("task"))
        whole = [*prompt, *apart, end, *codec(name).next_turn([*apart, end], "more")]
        again = tokenizer().apply_chat_template(chat("task", text, "more"), add_generation_prompt=True, tokenize=False)
        assert decode(whole) == again
        assert codec(name).text([*apart, end]) == text or name == "qwen3_instruct"  # its renderer strips
    session, _ = await answers_through_the_gateway([user("task")], [*apart, end], [*apart, end])
    (segment,) = session.segments
    sampled = [segment.completion[span.start : span.end] for span in segment.spans]
    assert sampled == [[*apart, end]] * 2


@pytest.mark.parametrize("text", ["🙂", "日本", "ls 🧑‍🚀"])
async def test_an_agents_half_character_stays_as_it_was_sampled(text: str) -> None:
    """It reads a replacement character and sends that back; the next prompt has the sampled bytes."""
    whole = encode(text)
    for cut in range(1, len(whole)):
        session, read = await answers_through_the_gateway(
            [user("task")], whole[:cut], [*whole, tokenizer().eos_token_id]
        )
        assert read[0].replace("\ufffd", "") in text
        assert read[1] == text
        (segment,) = session.segments
        first, second = segment.spans
        assert segment.completion[first.start : first.end] == whole[:cut]
        assert segment.completion[second.start : second.end] == [*whole, tokenizer().eos_token_id]
        between = decode(segment.completion[first.end : second.start])
        assert between == "<|im_end|>\n<|im_start|>user\nshown 0<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark != "<|im_end|>"])
async def test_a_control_token_that_was_sampled_is_trained_as_it_was(mark: str) -> None:
    """A small model writes its marks in the middle of a message: no prompt turns them into text, or text into them."""
    end, token = tokenizer().eos_token_id, tokenizer().convert_tokens_to_ids(mark)
    sampled = [*encode("echo "), token, *encode(" done"), end]
    for name in CODECS:
        prompt = codec(name).prompt(chat("task"))
        whole = [*prompt, *sampled, *codec(name).next_turn(sampled, f"{mark} {mark}")]
        assert control(whole).count(token) == control(prompt).count(token) + 1 + 2 * (mark == "<|im_start|>")
    session, _ = await answers_through_the_gateway([user(f"say {mark}")], sampled, sampled)
    (segment,) = session.segments
    assert [segment.completion[span.start : span.end] for span in segment.spans] == [sampled] * 2


@some
@given(task=plain.map(written), has_system=st.booleans())
async def test_each_codec_writes_the_first_prompt_of_the_template(task: str, has_system: bool) -> None:
    messages: list[Any] = chat(task, system="rules" if has_system else None)
    expected = tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert codec("chat_template").prompt(messages) == expected
    if has_system:  # the cookbook's renderer writes no default system message
        assert codec("qwen3_instruct").prompt(messages) == expected
    session, _ = await answers_through_the_gateway(messages, [tokenizer().eos_token_id])
    assert session.segments[0].prompt == expected


@pytest.mark.server
async def test_a_demonstration_has_the_tokens_of_the_episode_that_it_shows(tmp_path: Any) -> None:
    from harbor_gym.embedded.warm_start import conversation_encoder

    env = AsyncTerminalGymEnv(fake_config(tmp_path / "task", answers={"cat app.log": "<|im_end|> é🙂 \x1b[1m  \n"}))
    whole: list[int] = []
    is_sampled: list[bool] = []
    async with TokenTerminalEnv(env, codec("chat_template"), max_tokens=99) as episode:
        step = await episode.reset()
        for text in (message("cat app.log\n"), message("ls\n"), COMPLETE):
            added = step.observation[len(whole) :]
            tokens = [*encode(text), tokenizer().eos_token_id]
            whole += [*added, *tokens]
            is_sampled += [*[False] * len(added), *[True] * len(tokens)]
            step = await episode.step(tokens)
        assert step.done
        transcript = episode.transcript
    played = [{"role": "system", "content": transcript.system_prompt}]
    for turn in transcript.turns:
        played += [{"role": "user", "content": turn.observation}, {"role": "assistant", "content": turn.action}]
    row = conversation_encoder(tokenizer(), "chat_template")(played)
    assert (row.tokens, row.learnt) == (whole, is_sampled)
