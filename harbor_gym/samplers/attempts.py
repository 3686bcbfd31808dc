"""Attempts at one request to an engine: another one while it is overloaded, starts anew, or can't be reached."""

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
    """Those of the answer, if there was one."""

    @property
    def may_pass(self) -> bool:
        """Whether a later attempt may succeed."""
        return True


class StatusError(AttemptError):
    """The engine answered with another status than 200."""

    status: int = 0
    """The status."""

    body: str = ""
    """The answer's text."""

    @property
    def may_pass(self) -> bool:
        """As :attr:`AttemptError.may_pass`."""
        return is_retried(self.status)


def status_error(refusal: str, status: int, body: str, headers: Mapping[str, str]) -> HarborGymError:
    """Return the error of an answer with another status than 200: a ``StatusError``, or an ``EngineSettingsError``.

    Args:
        refusal: The answer as people read it.
        status: Its status.
        body: Its text.
        headers: Its headers.
    """
    if (wrong := settings_error(refusal, status, body)) is not None:
        return wrong
    error = StatusError(refusal)
    error.status, error.body, error.headers = status, body, headers
    return error


async def ask_patiently[T](
    ask: Callable[[], Awaitable[T]], *, max_attempts: int, note: Callable[[str], object] = lambda _: None
) -> T:
    """Return the answer to a request that is sent again, after a pause, while its failure may pass.

    Args:
        ask: Sends it once.
        max_attempts: How often it is sent at most.
        note: Called with each failure that another attempt follows.
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
