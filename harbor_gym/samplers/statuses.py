"""The meaning of an engine's HTTP status: another attempt, another setting, or neither."""

import email.utils
import random
import time
from collections.abc import Mapping

from harbor_gym.errors import UsageError

_RETRIED = frozenset({408, 409, 429})
"""Retried with every status from 500 on. Source: the retry rules of OpenAI's client."""

_BAD_REQUEST, _NOT_FOUND = 400, 404
_UNKNOWN_MODEL = "model_not_found"
"""Code of an unknown model in OpenAI's errors, which some servers send with status 400."""

_SETTINGS: Mapping[int, str] = {
    401: "set the key that it expects: api_key_env names the variable that holds it (--api-key-env)",
    403: "the key may not use this model: give another key or model",
    _NOT_FOUND: "it serves no such model, or nothing at that address: correct the model's name or the address",
}
"""What to change, by status."""

_ENDED_SESSION = "episode_ended"
"""Code of a gateway's session whose budget ran out, which answers with 401, too."""

_BACKOFF_SEC = 1.0
"""Wait before the second attempt; doubled for each further one, up to the longest."""

_MAX_BACKOFF_SEC, _MAX_ASKED_SEC = 8.0, 60.0
"""Longest own wait, and longest that an engine may ask for: OpenAI's client honours no longer one either."""

_JITTER = 0.25
"""Waits are shortened by up to this share, so that episodes that were refused together don't come back together."""


class EngineSettingsError(UsageError):
    """The engine refuses the key, the model or what a sampler asks for: each further request would be refused, too."""


def is_retried(status: int) -> bool:
    """Return whether a later attempt may succeed: the engine restarts, reloads its weights, or is overloaded."""
    return status in _RETRIED or status >= 500


def settings_error(refusal: str, status: int, body: str) -> EngineSettingsError | None:
    """Return the error of an answer that no later attempt and no other prompt changes; None for any other.

    Args:
        refusal: The answer as people read it.
        status: Its HTTP status.
        body: What came with it.
    """
    if status == _BAD_REQUEST and _UNKNOWN_MODEL in body:
        status = _NOT_FOUND
    if status not in _SETTINGS or _ENDED_SESSION in body:
        return None
    return EngineSettingsError(f"{_SETTINGS[status]} ({refusal})")


def pause_sec(headers: Mapping[str, str], attempt: int) -> float:
    """Return how long to wait after an attempt that failed, in seconds.

    Args:
        headers: Of the answer: ``Retry-After-Ms`` and ``Retry-After`` (seconds or a date) are honoured.
        attempt: The attempt's number, from 1.
    """
    asked = _asked_sec(headers)
    if asked is not None and 0 < asked <= _MAX_ASKED_SEC:
        return asked
    return min(_BACKOFF_SEC * 2 ** (attempt - 1), _MAX_BACKOFF_SEC) * (1 - _JITTER * random.random())


def _asked_sec(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("Retry-After", ""))
    return None if date is None else email.utils.mktime_tz(date) - time.time()
