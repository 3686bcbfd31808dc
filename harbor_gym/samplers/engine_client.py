"""An HTTP client of an inference engine: JSON requests and answers, with retries while the engine is overloaded."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from harbor_gym.errors import ContextOverflowError, SamplerError, UsageError
from harbor_gym.samplers.attempts import (
    AttemptError,
    History,
    StatusError,
    ask_patiently,
    no_json,
    shortened,
    status_error,
)
from harbor_gym.samplers.endpoints import why_unreachable
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.samplers.statuses import EngineSettingsError

_FAULT = 500
"""Status of an engine that fails at a request, as llama.cpp does at token ids."""

_WINDOW_SEC = 10.0
"""Longest wait for the list of models. Without the list, only the engine's refusals limit a prompt."""

_NOT_OPEN = "this sampler is not open: use it as an `async with` block"


class EngineClient:
    """Sends requests to one URL of an engine, any number concurrently. Use it as an async context manager.

    Args:
        base_url: The engine's address, with or without ``/v1``.
        path: Path of the URL, such as ``/v1/completions``.
        api_key_env: Name of the environment variable that holds the engine's key; None sends no key.
        timeout_sec: Longest wait for one answer, in seconds, including queueing in the engine; None is no limit.
        max_attempts: Most attempts at a request while the engine can't be reached, fails, or is overloaded.
        api_key: The key itself, if it is in no environment variable, such as one made for a single episode.

    Raises:
        UsageError: The variable ``api_key_env`` is not set, or ``api_key`` is given as well.
    """

    _remedy_of_fault = ""
    """What to do about an engine that answers every attempt at its first request with status 500; empty if the fault
    may pass."""

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        api_key_env: str | None,
        timeout_sec: float | None,
        max_attempts: int,
        api_key: str | None = None,
    ) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        self.url, self._models_url = f"{root}{path}", f"{root}/v1/models"
        """The URL of requests."""
        self._timeout_sec, self._max_attempts = timeout_sec, max_attempts
        self._headers: dict[str, str] = {}
        if api_key is not None and api_key_env is not None:
            raise UsageError("an engine takes one key: give api_key or api_key_env")
        if api_key_env is not None and not (api_key := os.environ.get(api_key_env)):
            raise UsageError(f"the environment variable {api_key_env} is not set: it should hold the engine's key")
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._models: asyncio.Future[list[dict[str, Any]]] | None = None
        self._waiting: dict[object, float] = {}
        self.history = History()
        """What is known of the engine; clients of one engine may share it."""
        self.last_failure = ""
        """Message of the last failure that was retried; empty if there was none."""

    @property
    def has_answered(self) -> bool:
        """Whether the engine has given a good answer."""
        return self.history.has_answered

    @property
    def waited_sec(self) -> float:
        """Seconds that the oldest unanswered request has waited, including failed attempts; 0.0 without one."""
        return time.monotonic() - min(self._waiting.values()) if self._waiting else 0.0

    async def __aenter__(self) -> Self:
        """Open the connections."""
        connector = aiohttp.TCPConnector(limit=0)  # as many as there are episodes
        timeout = aiohttp.ClientTimeout(total=self._timeout_sec)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        models, self._models = self._models, None
        if models is not None:
            models.cancel()
        if session is not None:
            await session.close()

    async def context_tokens(self) -> int | None:
        """Return the context window in tokens that the engine reports (``max_model_len`` of ``/v1/models``). Cached.

        Returns:
            None if the engine does not report it, or serves models with different windows.

        Raises:
            UsageError: The client is not open.
        """
        found = [model.get("max_model_len") for model in await self.models()]
        window = found[0] if found and all(other == found[0] for other in found) else None
        return window if type(window) is int and window > 0 else None

    async def models(self) -> list[dict[str, Any]]:
        """Return what the engine's ``/v1/models`` says of each of its models. Cached.

        Returns:
            Nothing if there is no such page, or it can't be read.

        Raises:
            UsageError: The client is not open.
        """
        if self._session is None:
            raise UsageError(_NOT_OPEN)
        if self._models is None:
            self._models = asyncio.ensure_future(_ask_models(self._session, self._models_url))
        return await asyncio.shield(self._models)

    async def _post[T](self, body: Mapping[str, Any], read: Callable[[object], T]) -> T:
        """Send a request and return what ``read`` makes of the JSON value of the answer.

        Raises:
            ContextOverflowError: The prompt does not fit the engine's context window.
            StatusError: The engine refuses the request, or is overloaded after the last attempt.
            SamplerError: The engine can't be reached, or does not answer in time or with JSON.
            EngineSettingsError: The engine refuses the key, the model or token ids, or answers a second time with what
                no further attempt can change, and has given no good answer yet.
            UsageError: The client is not open.
        """
        request = object()
        self._waiting[request] = time.monotonic()
        try:
            answer = await ask_patiently(
                lambda: self._post_once(body), max_attempts=self._max_attempts, note=self._note_failure
            )
            found = read(answer)
        except AttemptError as exc:
            is_fault = isinstance(exc, StatusError) and exc.status == _FAULT
            if is_fault and self._remedy_of_fault and not self.has_answered:
                raise EngineSettingsError(f"{self._remedy_of_fault} ({exc})") from exc
            self.history.note(exc)
            raise
        finally:
            del self._waiting[request]
        self.history.has_answered = True
        return found

    def _note_failure(self, failure: str) -> None:
        self.last_failure = failure

    async def _post_once(self, body: Mapping[str, Any]) -> object:
        if self._session is None:
            raise UsageError(_NOT_OPEN)
        try:
            async with self._session.post(self.url, json=body) as response:
                if response.status != 200:
                    text = self._without_key(await response.text(errors="replace"))
                    if is_overflow(response.status, text):
                        raise ContextOverflowError(_refusal(self.url, response.status, text))
                    refusal = _refusal(self.url, response.status, text)
                    raise status_error(refusal, response.status, text, response.headers, has_answered=self.has_answered)
                return self._read_json(await response.read())
        except TimeoutError:
            raise SamplerError(f"{self.url} did not answer within {self._timeout_sec:g} seconds") from None
        except aiohttp.ClientError as exc:
            raise AttemptError(f"{self.url} can't be reached: {why_unreachable(exc)}") from exc

    def _read_json(self, body: bytes) -> object:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise no_json(self.url, body, has_answered=self.has_answered) from None

    def _without_key(self, text: str) -> str:
        """Return text without the key, which some engines repeat when they refuse it."""
        key = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return text.replace(key, "***") if key else text


async def _ask_models(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_WINDOW_SEC)) as response:
            page = await response.json(content_type=None) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
        return []
    match page:
        case {"data": [*models]}:
            return [model for model in models if isinstance(model, dict)]
        case _:
            return []


def _refusal(url: str, status: int, text: str) -> str:
    return f"{url} answered with status {status}: {shortened(_stated_reason(text))}"


def _stated_reason(text: str) -> str:
    """Return the message in an error of OpenAI's or vLLM's format; else the whole text."""
    with contextlib.suppress(ValueError):
        match json.loads(text):
            case {"error": {"message": str() as said}}:
                return said
            case {"error": str() as said} | {"message": str() as said} | {"detail": str() as said}:
                return said
            case _:
                pass
    return text
