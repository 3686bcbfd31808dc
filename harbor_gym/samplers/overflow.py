"""Recognise an engine's refusal of a prompt that does not fit its context window."""

import re

_STATUSES = frozenset({400, 413, 422})

_WORDS = re.compile(
    r"context_length_exceeded|exceed_context_size_error|maximum context length|model's context length"
    r"|longer than the maximum (model|allowed)|exceeds? the maximum (allowed|input|model) length"
    r"|exceeds the available context size|context window of this model|maximum prompt length is"
    r"|(prompt|input) is too long|too long to fit into the model"
    r"|max_(completion_)?tokens'? (or '\w+' )?is too large|inputs` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
"""Messages of OpenAI, vLLM, SGLang, llama.cpp, text-generation-inference, xAI, Anthropic and Bedrock."""


def is_overflow(status: int, body: str) -> bool:
    """Return whether an engine's answer says that prompt and answer would not fit its context window.

    Args:
        status: The answer's HTTP status.
        body: The answer's text.
    """
    return status in _STATUSES and _WORDS.search(body) is not None
