"""Retries of a request to an engine that is overloaded, restarting, or unreachable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from harbor_gym.errors import HarborGymError, SamplerError
from harbor_gym.samplers.statuses import is_retried, pause_sec, settings_error

logger = logging.getLogger(__name__)


class AttemptError(SamplerError):
    """An attempt failed."""

    headers: Mapping[str, str] = MappingProxyType({})
    """The answer's headers, if there was an answer."""

    may_pass: bool = True
    """Whether a later attempt may succeed."""


class StatusError(AttemptError):
    """The engine answered with a status other than 200."""

    status: int = 0
    """The HTTP status."""

    body: str = ""
    """The answer's text."""


def status_error(
    refusal: str, status: int, body: str, headers: Mapping[str, str], *, has_answered: bool
) -> HarborGymError:
    """Return the error for a status other than 200: a ``StatusError``, or an ``EngineSettingsError``.

    Args:
        refusal: The error's message.
        status: The answer's HTTP status.
        body: The answer's text.
        headers: The answer's headers.
        has_answered: Whether the engine has given a good answer before.
    """
    if (wrong := settings_error(refusal, status, body, has_answered=has_answered)) is not None:
        return wrong
    error = StatusError(refusal)
    error.may_pass = is_retried(status, body, has_answered=has_answered)
    error.status, error.body, error.headers = status, body, headers
    return error


async def ask_patiently[T](
    ask: Callable[[], Awaitable[T]], *, max_attempts: int, note: Callable[[str], object] = lambda _: None
) -> T:
    """Send a request until it succeeds, with a pause after each failure that may pass.

    Args:
        ask: Sends the request once.
        max_attempts: Most attempts; the last one's error is raised.
        note: Called with the message of each failure before another attempt.
    """
    for attempt in range(1, max_attempts):
        try:
            return await ask()
        except AttemptError as exc:
            if not exc.may_pass:
                raise
            failure, headers = str(exc), exc.headers
        note(failure)
        logger.info("attempt %d of %d: %s", attempt, max_attempts, failure)
        await asyncio.sleep(pause_sec(headers, attempt))
    return await ask()
