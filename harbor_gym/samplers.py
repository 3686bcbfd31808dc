"""Samplers over engines that serve token ids: what goes in and comes out is never text."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import aiohttp

from harbor_gym.errors import SamplerError, UsageError
from harbor_gym.types import Sample, StopReason

_RETRIED = frozenset({429, 502, 503, 504})
"""Statuses of an engine that restarts, reloads its weights, or has too many requests."""

_BACKOFF_SEC = 1.0
"""Wait before the second attempt; doubled for each further one."""

_SHOWN_CHARACTERS = 500

logger = logging.getLogger(__name__)


class CompletionsSampler:
    """Sample from an engine's ``POST /v1/completions`` with a prompt of token ids, as vLLM serves it.

    The sampled ids come from ``return_token_ids`` (vLLM 0.10.2 and later) or, where the engine ignores that, from
    ``return_tokens_as_token_ids``. An engine that returns neither is refused: ids must not be guessed from text. The
    log-probabilities are those of the distribution that was sampled from only if the engine applies temperature before
    it reports them (vLLM: ``--logprobs-mode processed_logprobs``), or if the temperature is 1.

    Use it as a context manager; one sampler serves any number of episodes at once.

    Args:
        base_url: The engine's address, with or without ``/v1``.
        model: Model name, as the engine serves it.
        max_tokens: Longest answer, in tokens.
        temperature: Sampling temperature.
        api_key_env: Name of the environment variable that holds the engine's key; None sends no key.
        stop_token_ids: Tokens that end an answer, beside the model's own.
        timeout_sec: Longest wait for one answer, in seconds, queueing in the engine included.
        max_attempts: How often a request is sent when the engine can't be reached or is overloaded.
        extra_body: Further fields of the request, such as ``top_p`` or ``lora_name``.

    Raises:
        UsageError: ``api_key_env`` names a variable that is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        api_key_env: str | None = None,
        stop_token_ids: Sequence[int] = (),
        timeout_sec: float = 600.0,
        max_attempts: int = 4,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/completions"
        self._timeout_sec, self._max_attempts = timeout_sec, max_attempts
        self._headers: dict[str, str] = {}
        if api_key_env is not None:
            if not (key := os.environ.get(api_key_env)):
                raise UsageError(f"the environment variable {api_key_env} is not set: it should hold the engine's key")
            self._headers["Authorization"] = f"Bearer {key}"
        self._body: dict[str, Any] = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            # The prompt is whole: an engine that puts a begin-of-text token before it would change it.
            "add_special_tokens": False,
            "skip_special_tokens": False,
            **({"stop_token_ids": list(stop_token_ids)} if stop_token_ids else {}),
            **(extra_body or {}),
        }
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connections."""
        connector = aiohttp.TCPConnector(limit=0)  # as many as there are episodes
        timeout = aiohttp.ClientTimeout(total=self._timeout_sec)
        self._client = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample one message.

        Raises:
            SamplerError: The engine can't be reached, refuses the request, or returns no token ids.
            UsageError: The sampler is not open.
        """
        body = {**self._body, "prompt": list(prompt)}
        for attempt in range(1, self._max_attempts):
            try:
                return _read_sample(await self._post(body))
            except _OverloadedError as exc:
                logger.info("attempt %d of %d: %s", attempt, self._max_attempts, exc)
                await asyncio.sleep(_BACKOFF_SEC * 2 ** (attempt - 1))
        return _read_sample(await self._post(body))

    async def _post(self, body: Mapping[str, Any]) -> object:
        if self._client is None:
            raise UsageError("this sampler is not open: use `async with CompletionsSampler(...) as sampler`")
        try:
            async with self._client.post(self._url, json=body) as response:
                if response.status != 200:
                    text = (await response.text(errors="replace"))[:_SHOWN_CHARACTERS]
                    kind = _OverloadedError if response.status in _RETRIED else SamplerError
                    raise kind(f"{self._url} answered with status {response.status}: {text}")
                return await response.json(content_type=None)
        except TimeoutError:
            raise SamplerError(f"{self._url} did not answer within {self._timeout_sec:g} seconds") from None
        except aiohttp.ClientError as exc:
            raise _OverloadedError(f"{self._url} can't be reached: {exc}") from exc
        except ValueError as exc:
            raise SamplerError(f"{self._url} did not answer with JSON: {exc}") from exc


class _OverloadedError(SamplerError):
    """The engine may answer a later attempt."""


def _read_sample(answer: object) -> Sample:
    """Return the sample in an engine's answer.

    Raises:
        SamplerError: There is none.
    """
    match answer:
        case {"choices": [{"finish_reason": ("stop" | "length") as reason, **rest}]}:
            choice = cast("dict[str, Any]", rest)
        case {"choices": [{"finish_reason": reason}]}:
            raise SamplerError(f"the engine ended a message with {reason!r}, which is neither stop nor length")
        case _:
            raise SamplerError("the engine's answer holds no single choice")
    logprobs = _as_dict(choice.get("logprobs"))
    tokens = _token_ids(choice.get("token_ids"), logprobs.get("tokens"))
    values = logprobs.get("token_logprobs")
    if not isinstance(values, list) or len(cast("list[object]", values)) != len(tokens):
        raise SamplerError(f"the engine returned no log-probability for each of {len(tokens)} tokens")
    if not all(isinstance(value, int | float) for value in cast("list[object]", values)):
        raise SamplerError("the engine returned log-probabilities that are no numbers")
    return Sample(tokens, [float(value) for value in cast("list[float]", values)], cast("StopReason", reason))


def _token_ids(ids: object, names: object) -> list[int]:
    """Return the sampled ids, from ``token_ids`` or else from tokens named ``token_id:N``."""
    if isinstance(ids, list) and all(type(item) is int for item in cast("list[object]", ids)):
        return cast("list[int]", ids)
    if isinstance(names, list):
        named = [str(item).partition("token_id:") for item in cast("list[object]", names)]
        if all(not before and number.isdecimal() for before, _, number in named):
            return [int(number) for _, _, number in named]
    raise SamplerError("the engine returned no token ids: it must support return_token_ids, as vLLM 0.10.2 does")


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
