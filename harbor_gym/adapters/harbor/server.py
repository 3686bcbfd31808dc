"""A client of Harbor's own server: submit rollouts, await them, and fetch their results."""

import asyncio
import logging
import os
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from harbor.models.trial.config import EnvironmentConfig
from pydantic import ValidationError

from harbor_gym._runtime.harbor_versions import server_client, server_error
from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxThrottledError, UsageError
from harbor_gym.samplers.endpoints import find_silence
from harbor_gym.sandboxes import environment_config

_KEY_VARIABLE = "HARBOR_API_KEY"

_POLL_SEC = 0.5
"""Pause between two requests for a rollout's state."""

_CANCEL_SEC = 90.0
"""Longest wait for a cancelled rollout's sandbox to stop; the server interrupts a stop after 60 seconds."""

MAX_ROLLOUTS = 256
"""Most concurrent rollouts of this process on one server, as the relay carries at most that many requests."""

_DONE = ("finished", "cancelled")

_NOT_HARBORS = "HTTPError"
"""The error code of Harbor's client for an answer that is not in the format of Harbor's server."""

logger = logging.getLogger(__name__)

_answered: set[str] = set()
"""Addresses of servers that have answered this process."""

_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class HarborServer:
    """A running ``harbor serve`` with its inference relay, of Harbor 0.26 or later."""

    url: str
    """The server's URL, such as ``https://harbor.example``."""

    api_key: str | None = field(default=None, repr=False)
    """The server's key; None takes the environment variable ``HARBOR_API_KEY``."""

    lost_after_sec: float = 120.0
    """How long the server may be unreachable, for instance during a restart, before a rollout counts as lost."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that authenticate a request."""
        key = self.api_key if self.api_key is not None else os.environ.get(_KEY_VARIABLE)
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def slots(self) -> asyncio.Semaphore:
        """Limits the concurrent rollouts on the server; shared by all callers on this event loop."""
        of_loop = _slots.setdefault(asyncio.get_running_loop(), {})
        return of_loop.setdefault(self.url.rstrip("/"), asyncio.Semaphore(MAX_ROLLOUTS))


async def require_answer(server: HarborServer) -> None:
    """Ask a server for any answer, unless it has answered this process before.

    A server that was there may restart, and is waited for; one that never was is a wrong address.

    Raises:
        UsageError: It does not answer.
    """
    if server.url in _answered:
        return
    if (silence := await find_silence(server.url)) is not None:
        raise UsageError(
            f"no server of Harbor's answers at {server.url} ({silence}): start harbor serve there, or correct the "
            "address (--harbor-server)"
        )
    _answered.add(server.url)


def server_environment(sandbox: str, options: Mapping[str, Any]) -> EnvironmentConfig:
    """Return a sandbox's configuration for a server; ``docker`` is Harbor's own class, which needs no harbor_gym there.

    Raises:
        UsageError: There is no sandbox of that name.
    """
    if sandbox != "docker":
        return environment_config(sandbox, options=options)
    return EnvironmentConfig.model_validate({"type": sandbox, "kwargs": dict(options)})


class ServerJobs:
    """Jobs of one rollout each, on a server that has accepted a session's connection.

    It is therefore known to be a Harbor server: an answer in another format comes from a proxy, and is retried.

    Args:
        server: The server.

    Raises:
        UsageError: The installed Harbor has no client for servers, or the URL is invalid.
    """

    def __init__(self, server: HarborServer) -> None:
        self._server, self._client, self._error = server, server_client(server.url, server.api_key), server_error()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def submit(self, config: Mapping[str, Any], session_id: str) -> str:
        """Submit a job once, also if the answer to an attempt is lost; return its id.

        Raises:
            UsageError: The server refuses the job, or the key.
            SandboxLostError: The server can't be reached.
        """
        key = str(uuid.uuid4())

        async def submit() -> Any:
            try:
                done = await self._client.jobs.submit(
                    dict(config), relay_inference=True, session_id=session_id, idempotency_key=key
                )
            except self._error as exc:
                if (known := getattr(exc, "details", {}).get("job_id")) is not None:
                    return known  # made by an earlier attempt, whose answer was lost
                raise
            return done.job_id

        return str(await self._ask(submit))

    async def rollout(self, job_id: str) -> Any:
        """Return the server's summary of a job's rollout."""
        page = await self._ask(lambda: self._client.rollouts.list(job_ids=[job_id]))
        if not page.items:
            raise SandboxLostError(f"Harbor's server at {self._server.url} has no rollout of job {job_id}")
        return page.items[0]

    async def finished(self, job_id: str, was_restarted: Callable[[], bool]) -> Any:
        """Wait until a job's rollout is over, and return its details with its ``result``.

        Args:
            job_id: The job.
            was_restarted: Returns whether the server may have restarted, after which it pauses queued rollouts.

        Raises:
            SandboxLostError: The server can't be reached, or the rollout was cancelled before it began.
        """
        rollout = await self._over(job_id, was_restarted)
        detail = await self._ask(lambda: self._client.rollouts.get(rollout.id))
        if detail.result is None:
            raise SandboxLostError(f"rollout {rollout.id} was cancelled on Harbor's server before it began")
        return detail

    async def cancel(self, job_id: str) -> None:
        """Cancel a job and wait until its sandbox has stopped; failures are logged."""
        try:
            async with asyncio.timeout(_CANCEL_SEC):
                await self._client.jobs.cancel(job_id)
                await self._over(job_id, lambda: False)
        except (TimeoutError, httpx.HTTPError, HarborGymError, self._error) as exc:
            logger.warning(
                "job %s on Harbor's server %s may still run: %s", job_id, self._server.url, exc or type(exc).__name__
            )

    async def fetch(self, detail: Any, folder: Path) -> None:
        """Fetch the files of a finished rollout into a folder; ``detail`` is the result of :meth:`finished`."""
        for name, uri in detail.artifacts.items():
            path = folder / name
            if name.endswith("/") or ".." in path.parts or not path.is_relative_to(folder):
                continue
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await self._ask(lambda uri=uri, path=path: self._client.download(uri, path))

    async def _over(self, job_id: str, was_restarted: Callable[[], bool]) -> Any:
        """Wait until a job's rollout is over, and return it."""
        while True:
            rollout = await self.rollout(job_id)
            if rollout.state in _DONE:
                return rollout
            if rollout.state == "paused" and was_restarted():
                await self._ask(lambda: self._client.jobs.resume(job_id))
            await asyncio.sleep(_POLL_SEC)

    async def _ask[T](self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the server, and retry while it can't be reached.

        Raises:
            UsageError: The server refuses the request.
            SandboxLostError: The server can't be reached.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._server.lost_after_sec
        while True:
            try:
                return await call()
            except httpx.HTTPError as exc:
                why = str(exc) or type(exc).__name__
            except ValidationError as exc:
                if exc.errors()[0]["type"] != "json_invalid":
                    raise UsageError(f"{self._server.url} does not answer as Harbor's server does") from exc
                why = "it answered with a page"
            except self._error as exc:
                why = self._temporary(exc)
            if loop.time() >= deadline:
                raise SandboxLostError(f"Harbor's server at {self._server.url} can't be reached: {why}")
            await asyncio.sleep(_POLL_SEC)

    def _temporary(self, exc: Exception) -> str:
        """Return the message of an error that may pass, and raise any other."""
        status = getattr(exc, "status_code", 500)
        if getattr(exc, "code", "") == _NOT_HARBORS:
            return f"it answered with status {status}"
        if status in (401, 403):
            raise UsageError(f"Harbor's server at {self._server.url}: {exc} (the key is {_KEY_VARIABLE})") from None
        if status == 429:
            raise SandboxThrottledError(f"Harbor's server at {self._server.url}: {exc}") from None
        if status < 500:
            raise UsageError(f"Harbor's server at {self._server.url} refuses the rollout: {exc}") from None
        return str(exc)
