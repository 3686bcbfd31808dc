"""Recognise a provider's throttling among the errors of any client library."""

import re
from collections.abc import Iterator
from typing import Any

_STATUS_TOO_MANY_REQUESTS = 429
_NAMES = re.compile(r"rate_?limit|too_?many_?requests|throttl|quota|resource_?exhausted", re.IGNORECASE)
_WORDS = re.compile(
    r"\b(?:status|code|http|error)\W{0,3}429\b|\b429\W{0,3}too many|too many requests|rate.?limit(?:ed)?\b|"
    r"\bquota (?:is |was )?exceeded|exceeded (?:your |the )?(?:\w+ )?quota",
    re.IGNORECASE,
)
_RETRY_AFTER = re.compile(
    r"retry[- _]?after\W{1,3}(\d+(?:\.\d+)?)|(?:retry|try again) in (\d+(?:\.\d+)?) ?s", re.IGNORECASE
)
_ATTRIBUTES = ("retry_after_sec", "retry_after", "retry_after_seconds")


def is_throttled(error: BaseException) -> bool:
    """Return whether ``error``, or one of its causes, means that fewer or later requests would be granted."""
    return any(_is_throttling(item) for item in _chain(error))


def retry_after_sec(error: BaseException) -> float | None:
    """Return the seconds that the provider asked to wait; None if it asked for none."""
    return next((seconds for item in _chain(error) if (seconds := _asked_wait(item)) is not None), None)


def _is_throttling(error: BaseException) -> bool:
    if _NAMES.search(type(error).__name__) or _asked_wait(error) is not None:
        return True
    statuses = (getattr(error, "status_code", None), getattr(error, "status", None))
    response_status = getattr(getattr(error, "response", None), "status_code", None)
    return _STATUS_TOO_MANY_REQUESTS in (*statuses, response_status) or _WORDS.search(str(error)) is not None


def _asked_wait(error: BaseException) -> float | None:
    headers: Any = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None)
    header = headers.get("retry-after") if hasattr(headers, "get") else None
    output: Any
    for output in (*(getattr(error, name, None) for name in _ATTRIBUTES), header):
        try:
            return max(float(output), 0.0)
        except (TypeError, ValueError):
            continue  # absent, or a date, whose clock may differ from ours
    found = _RETRY_AFTER.search(str(error))
    return float(found[1] or found[2]) if found else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
