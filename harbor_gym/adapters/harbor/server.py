"""A client of Harbor's own server: submit rollouts, await them and fetch their results, by the server's API."""

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
from harbor_gym.sandboxes import environment_config

_KEY_VARIABLE = "HARBOR_API_KEY"

_POLL_SEC = 0.5
"""Between two requests for a rollout's state."""

_CANCEL_SEC = 90.0
"""How long a cancelled rollout may stop its sandbox: the server interrupts a stop that takes longer than 60."""

MAX_ROLLOUTS = 256
"""Rollouts at a time on one server, by this process: the relay carries as many requests."""

_DONE = ("finished", "cancelled")

_NOT_HARBORS = "HTTPError"
"""How Harbor's client names an error whose answer is not in the form of Harbor's server."""

logger = logging.getLogger(__name__)

_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class HarborServer:
    """A running ``harbor serve`` with its inference relay, of Harbor 0.26 or later."""

    url: str
    """Its address, such as ``https://harbor.example``."""

    api_key: str | None = field(default=None, repr=False)
    """Its key; None is the environment variable ``HARBOR_API_KEY``."""

    lost_after_sec: float = 120.0
    """How long it may be out of reach before a rollout counts as lost. It may be started anew meanwhile."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What authenticates a request to it."""
        key = self.api_key if self.api_key is not None else os.environ.get(_KEY_VARIABLE)
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def slots(self) -> asyncio.Semaphore:
        """The places for rollouts on it, shared by everything that runs on this event loop."""
        of_loop = _slots.setdefault(asyncio.get_running_loop(), {})
        return of_loop.setdefault(self.url.rstrip("/"), asyncio.Semaphore(MAX_ROLLOUTS))


def server_environment(sandbox: str, options: Mapping[str, Any]) -> EnvironmentConfig:
    """Return a sandbox's configuration for a server: ``docker`` is Harbor's own there, which needs no harbor_gym.

    Raises:
        UsageError: No sandbox has that name.
    """
    if sandbox != "docker":
        return environment_config(sandbox, options=options)
    return EnvironmentConfig.model_validate({"type": sandbox, "kwargs": dict(options)})


class ServerJobs:
    """Jobs of one rollout each on a server that has taken the connection of a session.

    Whether it is a server of Harbor's is therefore known: an answer that is none of Harbor's comes from what stands
    between, and is asked again.

    Args:
        server: Where they run.

    Raises:
        UsageError: The Harbor that is installed here has no client of a server, or the address is none.
    """

    def __init__(self, server: HarborServer) -> None:
        self._server, self._client, self._error = server, server_client(server.url, server.api_key), server_error()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def submit(self, config: Mapping[str, Any], session_id: str) -> str:
        """Submit a job; return its id. A job is made once, also where the answer was lost on its way.

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
                    return known  # of an attempt whose answer did not arrive
                raise
            return done.job_id

        return str(await self._ask(submit))

    async def rollout(self, job_id: str) -> Any:
        """Return what the server tells of a job's rollout, in short."""
        page = await self._ask(lambda: self._client.rollouts.list(job_ids=[job_id]))
        if not page.items:
            raise SandboxLostError(f"Harbor's server at {self._server.url} has no rollout of job {job_id}")
        return page.items[0]

    async def finished(self, job_id: str, was_restarted: Callable[[], bool]) -> Any:
        """Wait until a job's rollout is over and return all that the server tells of it: its ``result``, too.

        Args:
            job_id: The job.
            was_restarted: Returns whether the server may have been started anew: it then holds back what waited.

        Raises:
            SandboxLostError: The server can't be reached, or the rollout was cancelled before it began.
        """
        rollout = await self._over(job_id, was_restarted)
        detail = await self._ask(lambda: self._client.rollouts.get(rollout.id))
        if detail.result is None:
            raise SandboxLostError(f"rollout {rollout.id} was cancelled on Harbor's server before it began")
        return detail

    async def cancel(self, job_id: str) -> None:
        """Cancel a job and wait until its sandbox is down; what goes wrong is logged."""
        try:
            async with asyncio.timeout(_CANCEL_SEC):
                await self._client.jobs.cancel(job_id)
                await self._over(job_id, lambda: False)
        except (TimeoutError, httpx.HTTPError, HarborGymError, self._error) as exc:
            logger.warning(
                "job %s on Harbor's server %s may still run: %s", job_id, self._server.url, exc or type(exc).__name__
            )

    async def fetch(self, detail: Any, folder: Path) -> None:
        """Fetch the files of a rollout that is over into a folder: ``detail`` as :meth:`finished` returns it."""
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
        """Return an answer of the server, asked again while it can't be reached.

        Raises:
            UsageError: The server refuses the request.
            SandboxLostError: It can't be reached.
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
        """Return the words of an error that may pass, and raise any other."""
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
