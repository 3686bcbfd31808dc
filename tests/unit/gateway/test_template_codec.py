"""A chat template that renders tools itself: bridged prompts are the ones that it would have written."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.errors import UsageError
from harbor_gym.formats.tool_text import ToolDefinition
from harbor_gym.gateway import Session, TemplateConversationCodec
from harbor_gym.gateway.chat import Message
from harbor_gym.gateway.wires import ChatCompletionsWire
from harbor_gym.types import Sample
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.gateway.clients import BASH, chat_body, tool_call, user

if find_spec("transformers") is None:
    pytest.skip("pip install transformers", allow_module_level=True)

CHAT = ChatCompletionsWire()
SHELL = ToolDefinition("bash", parameters={"type": "object"})

TEMPLATE = """\
{%- if messages[0].role == 'system' or tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}{% endif %}
{%- if tools %}
# Tools
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}{% endif %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' + opening | default('') }}{% endif %}"""
"""ChatML with tools, laid out as Qwen's."""


def make_codec(**kwargs: Any) -> TemplateConversationCodec:
    kwargs.setdefault("chat_template", TEMPLATE)
    return TemplateConversationCodec(byte_level_tokenizer(), **kwargs)


def encode(text: str) -> list[int]:
    return byte_level_tokenizer()(f"{text}<|im_end|>", add_special_tokens=False)["input_ids"]


def decode(tokens: Any) -> str:
    return byte_level_tokenizer().decode(tokens, skip_special_tokens=False)


WORDS = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P"], exclude_characters="<>\\\"'&"), min_size=1, max_size=9
)


@given(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=2), WORDS), min_size=2, max_size=4))
async def test_bridged_prompts_are_what_the_template_would_write(turns: list[tuple[str, list[str], str]]) -> None:
    codec = make_codec()
    script = iter([text + "".join(f"\n{tool_call(command=word)}" for word in calls) for text, calls, _ in turns])

    async def sample(_: Any) -> Sample:
        return Sample(encode(next(script)))

    session = Session(sample, codec)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, user("task")]
    for _, _, following in turns:
        body = chat_body(*messages, tools=True)
        answer, call = await session.answer(CHAT.read(body))
        assert decode(answer.prompt) == decode(codec.render(CHAT.read(body).messages, CHAT.read(body).tools))
        if call.parent is not None:
            assert answer.prompt[: len(call.parent.tokens)] == call.parent.tokens
        message = CHAT.plain(body, answer)["choices"][0]["message"]
        messages.append({**message, "content": message["content"] or ""})
        for asked in message.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": following})
        if not message.get("tool_calls"):
            messages.append(user(following))
    assert len(session.segments) == 1


def test_the_sampled_end_is_not_written_twice() -> None:
    codec = make_codec()
    end = byte_level_tokenizer().eos_token_id
    assert decode(codec.render_next([5, end], [Message("user", "more")], ())).startswith("\n<|im_start|>user")
    assert decode(codec.render_next([5], [Message("user", "more")], ())).startswith("<|im_end|>\n<|im_start|>user")


def test_reasoning_and_calls_are_split() -> None:
    parsed = make_codec().parse(encode(f"<think>\nhm\n</think>\n\nI look.\n{tool_call(command='ls')}"), [SHELL])
    assert (parsed.content, parsed.reasoning) == ("I look.", "hm")
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("bash", {"command": "ls"})]


def test_a_template_that_opens_the_thinking() -> None:
    codec = make_codec(opening="<think>\n")
    assert codec.parse(encode("hm\n</think>\n\nI look."), ()).content == "I look."
    assert codec.parse(encode("hm\n</think>\n\nI look."), ()).reasoning == "hm"
    cut = codec.parse(encode("only thinking")[:-1], ())
    assert (cut.content, cut.reasoning) == ("", "only thinking")


def test_a_template_that_rewrites_answers_is_refused() -> None:
    closing = "{% endfor %}{{ '<|im_end|>\\n' }}"
    assert closing in TEMPLATE
    echoing = TEMPLATE.replace(closing, "{% endfor %}{{ '<|im_end|>\\n' + message.content }}")
    with pytest.raises(UsageError, match="continued"):
        make_codec(chat_template=echoing).render_next([5], [Message("user", "more")], ())


def test_foreign_messages_are_rendered() -> None:
    codec = make_codec()
    messages = CHAT.read(
        chat_body(
            {"role": "developer", "content": "one"},
            {"role": "system", "content": "two"},
            user("task"),
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "bash", "arguments": "not JSON"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "out"},
            {"role": "system", "content": "a reminder"},
            tools=True,
        )
    ).messages
    text = decode(codec.render(messages, [SHELL]))
    assert "one\n\ntwo" in text
    assert '{"input": "not JSON"}' in text
    assert "<tool_response>\nout\n</tool_response>" in text
    assert text.endswith("<|im_start|>user\na reminder<|im_end|>\n<|im_start|>assistant\n")
    assert BASH["function"]["name"] in text
