"""The numbers of tokens that an engine reports beside an answer."""

from collections.abc import Mapping
from typing import Any, cast

from harbor_gym.errors import SamplerError


def reported(usage: object, name: str) -> int | None:
    """Return a number of an engine's ``usage``; None if it is not reported.

    Raises:
        SamplerError: It is no number of tokens.
    """
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        raise SamplerError(f"the engine's usage is no object: {usage!r:.60}")
    value = cast("Mapping[str, Any]", usage).get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise SamplerError(f"the engine's usage has {value!r:.60} as {name}, which is no number of tokens")
    return value


def check_usage(usage: object, *, prompt_tokens: int, sampled_tokens: int) -> None:
    """Check that an engine reports the tokens that were sent and received.

    Raises:
        SamplerError: It reports others, so that the sampled tokens may follow another prompt, or be others.
    """
    for name, count in (("prompt_tokens", prompt_tokens), ("completion_tokens", sampled_tokens)):
        if (value := reported(usage, name)) not in (None, count):
            raise SamplerError(f"the engine's usage has {value} {name}, and there are {count}")
