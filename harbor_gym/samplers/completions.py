"""A sampler for engines that take and return token ids, such as vLLM; nothing passes as text."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harbor_gym.errors import SamplerError
from harbor_gym.samplers.attempts import AnswerError
from harbor_gym.samplers.engine_client import EngineClient
from harbor_gym.samplers.statuses import TAKES_TOKENS, EngineSettingsError
from harbor_gym.samplers.usage import check_usage
from harbor_gym.types import Sample, StopReason

_NAMED_ID = re.compile(r"token_id:(-?[0-9]{1,18})")


class CompletionsSampler(EngineClient):
    """Sample from an engine's ``POST /v1/completions`` with a prompt of token ids, as vLLM serves it.

    The sampled ids come from ``return_token_ids`` (vLLM 0.10.2 and later) or, if the engine ignores that, from
    ``return_tokens_as_token_ids``. An engine that returns neither is refused: ids must not be guessed from text. The
    log-probabilities are those of the sampling distribution only if the engine applies the temperature before it
    reports them (vLLM: ``--logprobs-mode processed_logprobs``), or if the temperature is 1.

    Use it as an async context manager; one sampler serves any number of concurrent episodes.

    Args:
        base_url: The engine's address, with or without ``/v1``.
        model: Model name, as the engine serves it.
        max_tokens: Longest answer, in tokens.
        temperature: Sampling temperature.
        api_key_env: Name of the environment variable that holds the engine's key; None sends no key.
        stop_token_ids: Tokens that end an answer, in addition to the model's own.
        timeout_sec: Longest wait for one answer, in seconds, including queueing in the engine.
        max_attempts: Most attempts at a request while the engine can't be reached, fails, or is overloaded.
        extra_body: Further fields of the request, such as ``top_p`` or ``lora_name``.

    Raises:
        UsageError: The variable ``api_key_env`` is not set.
    """

    _remedy_of_fault = TAKES_TOKENS

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
        super().__init__(
            base_url, "/v1/completions", api_key_env=api_key_env, timeout_sec=timeout_sec, max_attempts=max_attempts
        )
        self._body: dict[str, Any] = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            # The prompt is complete: the engine must not prepend a begin-of-text token.
            "add_special_tokens": False,
            "skip_special_tokens": False,
            **({"stop_token_ids": list(stop_token_ids)} if stop_token_ids else {}),
            **(extra_body or {}),
        }

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample one message.

        Raises:
            ContextOverflowError: The prompt does not fit the engine's context window.
            SamplerError: The engine can't be reached, refuses the request, or ends a message in an unknown way.
            EngineSettingsError: The engine refuses the key or the model, or returns no token ids or log-probabilities.
            UsageError: The sampler is not open.
        """
        read = functools.partial(_read_sample, prompt=prompt, max_tokens=self._body.get("max_tokens"))
        return await self._post({**self._body, "prompt": list(prompt)}, read)


def _read_sample(answer: object, *, prompt: Sequence[int], max_tokens: int | None) -> Sample:
    """Return the sample in an engine's answer.

    Raises:
        SamplerError: The answer has no sample that can be trained on.
        EngineSettingsError: The answer has no token ids or no log-probabilities.
    """
    match answer:
        case {"choices": [{"finish_reason": ("stop" | "length") as reason, **rest}], **envelope}:
            choice = cast("dict[str, Any]", rest)
        case {"choices": [{"finish_reason": reason}]}:
            raise SamplerError(f"the engine ended a message with {reason!r:.200}, which is neither stop nor length")
        case _:
            raise AnswerError("the engine's answer holds no single choice")
    logprobs = _as_dict(choice.get("logprobs"))
    tokens = _token_ids(choice.get("token_ids"), logprobs.get("tokens"))
    values = logprobs.get("token_logprobs")
    if values is None:
        raise EngineSettingsError(
            "the engine returned no log-probabilities, and the policy is trained on them: let it return them for each "
            "sampled token (logprobs), or take another engine"
        )
    if not isinstance(values, list):
        raise SamplerError(f"the engine's log-probabilities are no list: {values!r:.60}")
    sample = Sample(tokens, cast("list[float]", values), cast("StopReason", reason)).checked(max_tokens=max_tokens)
    check_usage(envelope.get("usage"), prompt_tokens=len(prompt), sampled_tokens=len(tokens))
    return sample


def _token_ids(ids: object, names: object) -> list[int]:
    """Return the sampled ids, from ``token_ids`` or else from tokens named ``token_id:N``."""
    if isinstance(ids, list) and not any(isinstance(item, str) for item in cast("list[object]", ids)):
        return cast("list[int]", ids)
    if isinstance(names, list):
        named = [_NAMED_ID.fullmatch(str(item)) for item in cast("list[object]", names)]
        if all(named):
            return [int(found[1]) for found in named if found]
    raise EngineSettingsError(
        "the engine returned no token ids: it must support return_token_ids, as vLLM 0.10.2 does; for SGLang "
        "take SGLangSampler"
    )


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
