"""A sampler for SGLang's own endpoint, which takes and returns token ids."""

import base64
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from harbor_gym.errors import ContextOverflowError, SamplerError
from harbor_gym.samplers.attempts import AnswerError
from harbor_gym.samplers.engine_client import EngineClient
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.samplers.statuses import TAKES_TOKENS, EngineSettingsError
from harbor_gym.samplers.usage import check_usage
from harbor_gym.types import RoutedExperts, Sample, StopReason

_VERSION_DIGITS = 18
"""A longer version of the weights is a hash, and no number of steps."""


class SGLangSampler(EngineClient):
    """Sample from SGLang's ``POST /generate`` with a prompt of token ids.

    The sampled ids are those of ``output_token_logprobs``, so each has its log-probability. These are of the sampling
    distribution, unless the engine runs with ``SGLANG_RETURN_ORIGINAL_LOGPROB``; then only at a temperature of 1.

    Use it as an async context manager; one sampler serves any number of concurrent episodes.

    Source: https://docs.sglang.io/basic_usage/sampling_params.html

    Args:
        base_url: The engine's address.
        max_tokens: Longest answer, in tokens.
        temperature: Sampling temperature.
        api_key_env: Name of the environment variable that holds the engine's key; None sends no key.
        stop_token_ids: Tokens that end an answer, in addition to the model's own.
        timeout_sec: Longest wait for one answer, in seconds, including queueing in the engine.
        max_attempts: Most attempts at a request while the engine can't be reached, fails, or is overloaded.
        sampling_params: Further sampling parameters, such as ``top_p``.
        extra_body: Further fields of the request, such as ``lora_path``.
        routed_experts: Layers and experts of a token (top-k) of a mixture of experts, whose routes each sample then has
            (:attr:`harbor_gym.types.Sample.routed_experts`); the engine needs ``--enable-return-routed-experts``. None
            asks for none.

    Raises:
        UsageError: The variable ``api_key_env`` is not set.
    """

    _remedy_of_fault = TAKES_TOKENS

    def __init__(
        self,
        base_url: str,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        api_key_env: str | None = None,
        stop_token_ids: Sequence[int] = (),
        timeout_sec: float = 600.0,
        max_attempts: int = 4,
        sampling_params: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        routed_experts: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(
            base_url, "/generate", api_key_env=api_key_env, timeout_sec=timeout_sec, max_attempts=max_attempts
        )
        params: dict[str, Any] = {
            "max_new_tokens": max_tokens,
            "temperature": temperature,
            # The trained tokens must be exactly the sampled ones, including the stop token.
            "skip_special_tokens": False,
            "no_stop_trim": True,
            **({"stop_token_ids": list(stop_token_ids)} if stop_token_ids else {}),
            **(sampling_params or {}),
        }
        asked = {} if routed_experts is None else {"return_routed_experts": True}
        self._body: dict[str, Any] = {"sampling_params": params, "return_logprob": True, **asked, **(extra_body or {})}
        self._routed_experts = routed_experts

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        """Sample one message.

        Raises:
            ContextOverflowError: The prompt does not fit the engine's context window.
            SamplerError: The engine can't be reached, refuses the request, or ends a message in an unknown way.
            EngineSettingsError: The engine refuses the key, or returns no token ids with log-probabilities.
            UsageError: The sampler is not open.
        """
        limit = self._body["sampling_params"].get("max_new_tokens")
        read = functools.partial(_read_sample, prompt=prompt, max_tokens=limit, routed_experts=self._routed_experts)
        return await self._post({**self._body, "input_ids": list(prompt)}, read)


def _read_sample(
    answer: object, *, prompt: Sequence[int], max_tokens: int | None, routed_experts: tuple[int, int] | None = None
) -> Sample:
    """Return the sample in the engine's answer.

    Raises:
        SamplerError: The answer has no sample that can be trained on.
        ContextOverflowError: The engine aborted, because the prompt does not fit its context window.
        EngineSettingsError: The answer has no log-probabilities.
    """
    match answer:
        case {"meta_info": {"finish_reason": {"type": ("stop" | "length") as reason}, **rest}}:
            meta = cast("dict[str, Any]", rest)
        case {"meta_info": {"finish_reason": {"type": "abort", "message": str() as why}}} if is_overflow(400, why):
            raise ContextOverflowError(f"the engine refuses the prompt: {why}")
        case {"meta_info": {"finish_reason": reason}}:
            raise SamplerError(f"the engine ended a message with {reason!r:.200}, which is neither stop nor length")
        case _:
            raise AnswerError("the engine's answer holds no single message with its meta_info")
    sampled = meta.get("output_token_logprobs")
    if not isinstance(sampled, list):
        raise EngineSettingsError(
            "the engine returned no output_token_logprobs: return_logprob had no effect; let it return them"
        )
    pairs = [_pair(place, item) for place, item in enumerate(cast("list[object]", sampled))]
    sample = Sample(
        [token for _, token in pairs], [value for value, _ in pairs], cast("StopReason", reason), _version(meta)
    ).checked(max_tokens=max_tokens)
    check_usage(meta, prompt_tokens=len(prompt), sampled_tokens=len(pairs))
    if routed_experts is None:
        return sample
    routes = _routes(meta.get("routed_experts"), *routed_experts).checked(tokens=len(prompt) + len(pairs))
    return replace(sample, routed_experts=routes)


def _routes(packed: object, layers: int, choices: int) -> RoutedExperts:
    """Read the engine's routes: numbers of 32 bits in base64, by token, layer and choice, from the first token on."""
    import numpy as np

    if not isinstance(packed, str):
        raise EngineSettingsError(
            "the engine returned no routed_experts: start it with --enable-return-routed-experts, or ask for none"
        )
    try:
        experts = np.frombuffer(base64.b64decode(packed, validate=True), dtype="<i4").reshape(-1, layers, choices)
    except ValueError as exc:
        raise EngineSettingsError(
            f"the engine's routed_experts are not of {layers} layers with {choices} experts of a token each: {exc}"
        ) from exc
    return RoutedExperts(0, experts)


def _version(meta: Mapping[str, Any]) -> int | None:
    version = str(meta.get("weight_version"))
    return int(version) if version.isdecimal() and len(version) <= _VERSION_DIGITS else None


def _pair(place: int, item: object) -> tuple[Any, Any]:
    """Return log-probability and id of a sampled token, unchecked."""
    match item:
        case [value, token, *_] if value is not None:
            return value, token
        case _:
            raise SamplerError(f"the engine's token {place} is without log-probability and id: {item!r:.100}")
