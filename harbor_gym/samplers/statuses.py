"""Classify an engine's HTTP status: retry, wrong settings, or neither."""

import email.utils
import random
import time
from collections.abc import Mapping

from harbor_gym.errors import UsageError

_RETRIED = frozenset({408, 409, 429})
"""Statuses that are retried, like all from 500 on. Source: the retry rules of OpenAI's client."""

_BAD_REQUEST, _NOT_FOUND = 400, 404
_UNKNOWN_MODEL = "model_not_found"
"""Code of an unknown model in OpenAI's errors, which some servers send with status 400."""

_SETTINGS: Mapping[int, str] = {
    401: "set the key that it expects: api_key_env names the variable that holds it (--api-key-env)",
    403: "the key may not use this model: give another key or model",
    _NOT_FOUND: "it serves no such model, or nothing at that address: correct the model's name or the address",
}
"""The remedy, by status."""

_ENDED_SESSION = "episode_ended"
"""Code of a gateway's session whose budget ran out, which also answers with 401."""

_BACKOFF_SEC = 1.0
"""Wait before the second attempt; doubled for each further one, up to ``_MAX_BACKOFF_SEC``."""

_MAX_BACKOFF_SEC, _MAX_ASKED_SEC = 8.0, 60.0
"""Longest backoff, and the longest wait of a ``Retry-After`` that is honoured, as in OpenAI's client."""

_JITTER = 0.25
"""Waits are shortened by up to this share, so that episodes that failed together don't retry together."""


class EngineSettingsError(UsageError):
    """The engine refuses the key or the model, or lacks a feature that the sampler needs; every request would fail."""


def is_retried(status: int) -> bool:
    """Return whether a later attempt may succeed, as when the engine restarts, reloads weights, or is overloaded."""
    return status in _RETRIED or status >= 500


def settings_error(refusal: str, status: int, body: str) -> EngineSettingsError | None:
    """Return an error if every later request would get the same answer, because a setting is wrong; else None.

    Args:
        refusal: A description of the answer for the error's message.
        status: The answer's HTTP status.
        body: The answer's text.
    """
    if status == _BAD_REQUEST and _UNKNOWN_MODEL in body:
        status = _NOT_FOUND
    if status not in _SETTINGS or _ENDED_SESSION in body:
        return None
    return EngineSettingsError(f"{_SETTINGS[status]} ({refusal})")


def pause_sec(headers: Mapping[str, str], attempt: int) -> float:
    """Return how long to wait after a failed attempt, in seconds.

    Args:
        headers: The answer's headers; ``Retry-After-Ms`` and ``Retry-After`` (seconds or a date) are honoured.
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
