"""Chat templates that write, keep and drop a chat's history as those of models do."""

import ast

from tests.helpers.paths import ROOT


def embedded_policys() -> str:
    """Return the embedded policy's template, read from its file, because importing it takes seconds."""
    tree = ast.parse((ROOT / "harbor_gym/embedded/policy.py").read_text())
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="_CHAT_TEMPLATE")], value=value):
                return ast.literal_eval(value)
            case _:
                pass
    raise LookupError("harbor_gym/embedded/policy.py has no _CHAT_TEMPLATE")


QWEN2_5 = """\
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0]['role'] == 'system' -%}{{- messages[0]['content'] -}}
{%- else -%}{{- 'You are helpful.' -}}{%- endif -%}
{{- '\\n\\n# Tools\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\\n</tools><|im_end|>\\n' -}}
{%- elif messages[0]['role'] == 'system' -%}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or message.role == 'assistant' -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' -}}{{- message.content -}}{{- '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

QWEN3 = """\
{%- if messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(last_query=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' and not (message.content.startswith('<tool_response>')) -%}
{%- set ns.last_query = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set content = message.content -%}{%- set thinking = '' -%}
{%- if '</think>' in content -%}
{%- set thinking = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if loop.index0 > ns.last_query and (loop.last or thinking) -%}
{{- '<think>\\n' + thinking.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
{%- else -%}{{- content -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""

_NO_THINKING = """\
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
"""
assert _NO_THINKING in QWEN3

QWEN3_THINKING = QWEN3.replace(_NO_THINKING, "{{- '<think>\\n' -}}\n")
"""Opens the thinking itself, as Qwen3's 2507 and R1's templates do."""

LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

LAST_ONLY = """\
{{- '<|im_start|>user\\n' + messages[-1]['content'] + '<|im_end|>\\n<|im_start|>assistant\\n' -}}
"""
"""Leaves earlier answers out: it can't be continued."""

ECHOING = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- if message.role == 'assistant' -%}{{- '(' + message.content + ')' -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
"""
"""Repeats an answer behind its end: it can't be continued."""

COUNTING = """\
{{- (messages[-1].content | length) ~ ' characters follow.' -}}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
"""
"""Writes the head of a chat according to its last message."""

REFUSING = """{{- raise_exception('System role not supported') -}}"""
