"""Classify an engine's HTTP status: retry, wrong settings, or neither.

=========================  =============================  ================================
status                     before the first good answer   after it
=========================  =============================  ================================
401, 403, 404, 400 that    a wrong setting: the run ends  retried: a proxy restarts, or
names an unknown model                                    loads its models anew
500 to token ids, after    a wrong setting: the run ends  the episode is lost
the last attempt
408, 409, 413, 425, 429,   retried                        retried
500 and above
any other, or 200 with     the episode is lost, the       the episode is lost; a body
a body that is no JSON or  second time the run ends       that is no JSON is retried
has another API's form
=========================  =============================  ================================

Also retried: a connection that can't be made or breaks, and a status 200 with a body that is empty or cut. What is
retried in vain is an infrastructure failure of its episode. A prompt that is too long
(:mod:`harbor_gym.samplers.overflow`) and the end of a gateway's session are none of these, whatever the status.
"""

import email.utils
import random
import time
from collections.abc import Mapping

from harbor_gym.errors import UsageError

_RETRIED = frozenset({408, 409, 413, 425, 429})
"""Statuses that are retried, like all from 500 on. Source: the retry rules of OpenAI's client, RFC 9110, RFC 8470."""

_BAD_REQUEST, _NOT_FOUND = 400, 404
_UNKNOWN_MODEL = "model_not_found"
"""Code of an unknown model in OpenAI's errors, which some servers send with status 400."""

_SETTINGS: Mapping[int, str] = {
    401: "set the key that it expects: api_key_env names the variable that holds it (--api-key-env)",
    403: "the key may not use this model: give another key or model",
    _NOT_FOUND: "it serves no such model, or nothing at that address: correct the model's name or the address",
}
"""The remedy, by status."""

TAKES_TOKENS = (
    "the engine fails at every request with token ids, and the policy is trained on them: take an engine that takes "
    "and returns token ids, such as vLLM (CompletionsSampler) or SGLang (SGLangSampler)"
)
"""The remedy for a status of 500 that lasts, by a sampler of tokens."""

_ENDED_SESSION = "episode_ended"
"""Code of a gateway's session whose budget ran out, which also answers with 401."""

_BACKOFF_SEC = 1.0
"""Wait before the second attempt; doubled for each further one, up to ``_MAX_BACKOFF_SEC``."""

_MAX_BACKOFF_SEC, _MAX_ASKED_SEC = 8.0, 60.0
"""Longest backoff, and the longest wait of a ``Retry-After`` that is honoured, as in OpenAI's client."""

ASKED_PAUSE = {"Retry-After-Ms": 0.001, "Retry-After": 1.0}
"""Headers that ask for a pause, and their unit in seconds."""

_JITTER = 0.25
"""Waits are shortened by up to this share, so that episodes that failed together don't retry together."""


class EngineSettingsError(UsageError):
    """The engine refuses the key or the model, or lacks a feature that the sampler needs; every request would fail."""


def is_retried(status: int, body: str, *, has_answered: bool) -> bool:
    """Return whether a later attempt may succeed, as when the engine restarts, reloads weights, or is overloaded.

    Args:
        status: The answer's HTTP status.
        body: The answer's text.
        has_answered: Whether the engine has given a good answer before.
    """
    return status in _RETRIED or status >= 500 or (has_answered and _remedy(status, body) is not None)


def settings_error(refusal: str, status: int, body: str, *, has_answered: bool) -> EngineSettingsError | None:
    """Return an error if every later request would get the same answer, because a setting is wrong; else None.

    Args:
        refusal: A description of the answer for the error's message.
        status: The answer's HTTP status.
        body: The answer's text.
        has_answered: Whether the engine has given a good answer before, with these settings.
    """
    remedy = None if has_answered else _remedy(status, body)
    return None if remedy is None else EngineSettingsError(f"{remedy} ({refusal})")


def _remedy(status: int, body: str) -> str | None:
    if _ENDED_SESSION in body:
        return None
    return _SETTINGS.get(_NOT_FOUND if status == _BAD_REQUEST and _UNKNOWN_MODEL in body else status)


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
    for name, unit in ASKED_PAUSE.items():
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("Retry-After", ""))
    return None if date is None else email.utils.mktime_tz(date) - time.time()
