"""Tool calls of every family: read in the form that the chat template writes, refused at the start, or counted."""

import functools
import json
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harbor_gym.errors import UsageError
from harbor_gym.formats.call_forms import CALL_FORMS, looks_like_a_call
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, write_calls
from harbor_gym.gateway import Session, TemplateConversationCodec
from harbor_gym.gateway.chat import Message
from harbor_gym.gateway.wires import ChatCompletionsWire
from harbor_gym.types import Sample
from tests.helpers.chats import chat_templates
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.gateway.clients import chat_body, user

if find_spec("transformers") is None:
    pytest.skip("pip install transformers", allow_module_level=True)

HERMES, FUNCTION, GLM, MISTRAL, LLAMA = CALL_FORMS
BASH = ToolDefinition(
    "bash",
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "number"},
            "keep": {"type": ["boolean", "null"]},
            "env": {"type": "object"},
        },
    },
)
FREEFORM = ToolDefinition("patch", is_freeform=True)

_HEAD = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}"""
_TAIL = """<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_EACH = "{%- for call in message.tool_calls | default([]) %}{%- set function = call.function %}"
_CALLS = {
    FUNCTION.name: _EACH
    + """\
{{ '<tool_call>\\n<function=' + function.name + '>\\n' }}
{%- for key, value in function.arguments.items() %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}""",
    GLM.name: _EACH
    + """\
{{ '<tool_call>' + function.name + '\\n' }}
{%- for key, value in function.arguments.items() %}
{{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
{{- (value if value is string else value | tojson) + '</arg_value>\\n' }}
{%- endfor %}{{ '</tool_call>' }}{% endfor %}""",
    MISTRAL.name: "{%- if message.tool_calls %}{{ '[TOOL_CALLS] [' }}"
    + _EACH
    + "{%- if call.id | length != 9 or '_' in call.id %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    + "{{ function | tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']' }}{% endif %}",
    LLAMA.name: _EACH
    + """{{ '{"name": "' + function.name + '", "parameters": ' }}"""
    + "{{ function.arguments | tojson }}{{ '}' }}{% endfor %}",
    HERMES.name: _EACH
    + """\
{{ '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}{{ function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}""",
}
"""How the families' chat templates write calls."""

text = st.text("ab<>/=\"'\\{}[]\n\t é", max_size=30)
arguments = st.fixed_dictionaries(
    {"command": text},
    optional={
        "timeout": st.integers(-9, 9) | st.just(1.5),
        "keep": st.booleans() | st.none(),
        "env": st.dictionaries(st.text("ab"), text, max_size=2),
    },
)


@functools.cache
def codec_of(name: str) -> TemplateConversationCodec:
    return TemplateConversationCodec(byte_level_tokenizer(), f"{_HEAD}{_CALLS[name]}{_TAIL}")


def sampled(answer: str) -> list[int]:
    return byte_level_tokenizer().encode(f"{answer}<|im_end|>", add_special_tokens=False)


@pytest.mark.parametrize("name", _CALLS)
@given(calls=st.lists(arguments, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_what_the_template_writes_is_read_back(name: str, calls: list[dict[str, Any]]) -> None:
    codec = codec_of(name)
    made = tuple(ToolCall("bash", json.dumps(call), f"call_{number}") for number, call in enumerate(calls))
    chat = [Message("user", "task"), Message("assistant", "", made), Message("tool", "out", tool_call_id="call_0")]
    written = byte_level_tokenizer().decode(codec.render(chat, [BASH]), skip_special_tokens=False)
    answer = written.rpartition("<|im_start|>assistant\n")[0].rpartition("<|im_start|>assistant\n")[2]
    parsed = codec.parse(sampled(answer.partition("<|im_end|>")[0]), [BASH])
    assert [json.loads(call.arguments) for call in parsed.tool_calls] == calls
    assert {call.name for call in parsed.tool_calls} == {"bash"}
    assert len({call.id for call in parsed.tool_calls}) == len(calls)
    assert not parsed.content.strip()


@pytest.mark.parametrize(
    ("form", "answer", "content", "expected"),
    [
        (
            FUNCTION,
            "I look.\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
            "I look.",
            {"command": "ls"},
        ),
        (FUNCTION, "<function=bash><parameter=command>ls</parameter></function>", "", {"command": "ls"}),
        (
            FUNCTION,
            "<tool_call><function=bash><parameter=keep>True</parameter></function></tool_call>",
            "",
            {"keep": True},
        ),
        (GLM, "Now.<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>a\n", None, None),
        (
            GLM,
            "<tool_call>bash<arg_key>timeout</arg_key><arg_value>5</arg_value></tool_call>",
            "",
            {"timeout": 5},
        ),
        (MISTRAL, 'ok[TOOL_CALLS]bash[ARGS]{"command": "ls"}', "ok", {"command": "ls"}),
        (MISTRAL, '[TOOL_CALLS]bash{"command": "ls"}', "", {"command": "ls"}),
        (MISTRAL, '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}}]', "", {"command": "ls"}),
        (MISTRAL, '[TOOL_CALLS][{"name": "bash"}]', None, None),
        (LLAMA, '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}', "", {"command": "ls"}),
        (LLAMA, 'See {"name": "bash", "parameters": {}}', None, None),
        (LLAMA, '{"name": "other", "parameters": {}}', None, None),
    ],
)
def test_what_models_make_of_a_form(form: Any, answer: str, content: str | None, expected: Any) -> None:
    rest, calls = form.read(answer, [BASH])
    assert rest == (answer if content is None else content)
    assert [json.loads(call.arguments) for call in calls] == ([] if expected is None else [expected])


@pytest.mark.parametrize("form", CALL_FORMS, ids=lambda form: form.name)
@given(answer=st.text("ab<>_/=\"{}[]: \n\\", max_size=60) | st.lists(st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=a>", "<parameter=b>", "</parameter>", "</function>", "<arg_key>",
     "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "{", "}", '{"name": "a", "arguments": {}}'],
)).map("".join))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_answer_raises_and_nothing_is_lost(form: Any, answer: str) -> None:
    rest, calls = form.read(answer, [BASH])
    assert calls or rest == answer


def test_a_freeform_tool_gets_its_text() -> None:
    _, (call,) = FUNCTION.read("<function=patch><parameter=input>\n*** {\n</parameter></function>", [FREEFORM])
    assert call == ToolCall("patch", "*** {")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("{{ '<|tool_call>call:' + message.tool_calls[0].function.name }}", "<|tool_call>call:probing"),
        ("{{ raise_exception('arguments must be a string') }}", "arguments must be a string"),
    ],
)
def test_a_form_that_cant_be_read_is_refused_at_the_start(call: str, named: str) -> None:
    template = f"{_HEAD}{{% if message.tool_calls %}}{call}{{% endif %}}{_TAIL}"
    with pytest.raises(UsageError, match="can't be read") as caught:
        TemplateConversationCodec(byte_level_tokenizer(), template)
    assert named in str(caught.value)


def test_a_template_without_tools_gets_them_as_text() -> None:
    codec = TemplateConversationCodec(byte_level_tokenizer(), chat_templates.LLAMA3)
    shown = byte_level_tokenizer().decode(codec.render([Message("user", "task")], [BASH]), skip_special_tokens=False)
    assert '"name": "bash"' in shown
    assert [call.name for call in codec.parse(sampled(write_calls("", [ToolCall("bash", "{}")])), [BASH]).tool_calls]


async def test_a_message_that_only_looks_like_a_call_is_counted() -> None:
    answers = iter(["<function=bash><parameter=command>ls", "fine", write_calls("", [ToolCall("bash", "{}")])])

    async def sample(_: Any) -> Sample:
        return Sample(sampled(next(answers)))

    session = Session(sample, codec_of(HERMES.name))
    for question in ("one", "two", "three"):
        await session.answer(ChatCompletionsWire().read(chat_body(user(question), tools=True)))
    assert session.metrics["gateway/unread_calls"] == 1


@pytest.mark.parametrize(
    ("answer", "looks"),
    [
        ('{"name": "bash", "parameters": {', True),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", True),
        ("<|tool_call_start|>[bash()]", True),
        ("a plain answer with <b>html</b>", False),
        ('{"name": "a person"}', False),
    ],
)
def test_what_looks_like_a_call(answer: str, looks: bool) -> None:
    assert looks_like_a_call(answer) is looks
