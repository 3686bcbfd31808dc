"""Parameters of requests: honoured, refused, or left to the trainer's sampler.

A parameter that constrains an answer (its form, its end, its calls) is honoured or refused. Parameters of the
distribution (temperature, top_p, top_k, seed, penalties, reasoning effort) and the longest answer have no effect: the
trained tokens must come from the policy as the trainer configures it.
"""

from collections.abc import Mapping

from harbor_gym.gateway.errors import InvalidRequestError
from harbor_gym.gateway.wires.wire import Body, mapping

_FREE = "the policy's text is sampled freely"
_STOP = "the sampler's own stop tokens end an answer"

CONSTRAINTS: Mapping[str, str] = {
    "stop": _STOP,
    "stop_token_ids": _STOP,
    "stop_regex": _STOP,
    "logit_bias": _FREE,
    "allowed_token_ids": _FREE,
    "regex": _FREE,
    "ebnf": _FREE,
    "json_schema": _FREE,
    "structural_tag": _FREE,
    "guided_json": _FREE,
    "guided_regex": _FREE,
    "guided_choice": _FREE,
    "guided_grammar": _FREE,
    "structured_outputs": _FREE,
    "bad_words": _FREE,
}
"""Constraints on an answer, also those of engines, and why each is refused."""


def require_unset(body: Body, fields: Mapping[str, str]) -> None:
    """Refuse parameters that would have no effect.

    Args:
        body: The request.
        fields: Parameter → why it is refused, or a substitute for it.

    Raises:
        InvalidRequestError: One of them is set.
    """
    for field, instead in fields.items():
        if body.get(field) not in (None, False, "", [], {}):
            raise InvalidRequestError(f"{field} is not supported: {instead}")


def require_free_text(value: object, where: str) -> None:
    """Refuse an answer's format other than text.

    Raises:
        InvalidRequestError: The format is another one.
    """
    kind = mapping(value, where).get("type", "text")
    if kind != "text":
        raise InvalidRequestError(f"{where} of type {kind!r:.40} is not supported: {_FREE}")


def openai_call_limit(body: Body) -> int | None:
    """Return how many calls an answer may make: by ``tool_choice`` and ``parallel_tool_calls``; None is no limit.

    Raises:
        InvalidRequestError: A call is required, or only some of the tools are allowed.
    """
    return _call_limit(body.get("tool_choice"), body.get("tool_choice"), body.get("parallel_tool_calls") is False)


def anthropic_call_limit(body: Body) -> int | None:
    """Return how many calls an answer may make by ``tool_choice``; None is no limit.

    Raises:
        InvalidRequestError: A call is required.
    """
    choice = mapping(body.get("tool_choice"), "tool_choice")
    return _call_limit(choice.get("type"), choice, choice.get("disable_parallel_tool_use") is True)


def _call_limit(kind: object, choice: object, is_single: bool) -> int | None:
    if kind == "none":
        return 0
    if kind not in (None, "auto"):
        raise InvalidRequestError(f"tool_choice must be 'auto' or 'none', got {choice!r:.80}: no call can be forced")
    return 1 if is_single else None
