"""Retries of a request to an engine that is overloaded, restarting, or unreachable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harbor_gym.errors import HarborGymError, SamplerError
from harbor_gym.samplers.statuses import ASKED_PAUSE, EngineSettingsError, is_retried, pause_sec, settings_error

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 300


class AttemptError(SamplerError):
    """An attempt failed."""

    headers: Mapping[str, str] = MappingProxyType({})
    """The answer's headers that ask for a pause, if there was an answer."""

    may_pass: bool = True
    """Whether a later attempt may succeed."""


class AnswerError(AttemptError):
    """The answer has not the form of the engine's API: another attempt would get the same."""

    may_pass = False


class StatusError(AttemptError):
    """The engine answered with a status other than 200."""

    status: int = 0
    """The HTTP status."""

    body: str = ""
    """The answer's text."""


@dataclass(slots=True)
class History:
    """What is known of an engine, by one client or by several that live for an episode each."""

    has_answered: bool = False
    """Whether it has given a good answer, with these settings."""

    unusable: int = 0
    """Answers before the first good one that a further request would get again."""

    def note(self, failure: AttemptError) -> None:
        """Note a failure, of which the caller loses its episode.

        Raises:
            EngineSettingsError: It is the second one that no further attempt can change.
        """
        if failure.may_pass or self.has_answered:
            return
        self.unusable += 1
        if self.unusable > 1:
            raise EngineSettingsError(str(failure)) from failure


def shortened(text: str) -> str:
    """Return the beginning of an engine's text as one line for an error."""
    return " ".join(text.split())[:_SHOWN_CHARACTERS] or "no text"


def no_json(who: str, body: bytes, *, has_answered: bool) -> AttemptError:
    """Return the error for an answer of status 200 that is no JSON.

    Args:
        who: The engine, at the beginning of the message.
        body: The answer, which may pass if it is empty or cut, or if the engine has given a good answer before.
        has_answered: Whether it has.
    """
    shown = shortened(body.decode(errors="replace"))
    error = AttemptError(f"{who} did not answer with JSON, but with {shown}: is it the API's address?")
    error.may_pass = has_answered or body.lstrip()[:1] in (b"", b"{", b"[")
    return error


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
    error.status, error.body = status, body
    error.headers = {name: headers[name] for name in ASKED_PAUSE if name in headers}
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
