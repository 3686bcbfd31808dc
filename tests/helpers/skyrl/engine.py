"""SkyRL's inference client over any sampler of ours, and a tokenizer with a chat template."""

import asyncio
import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, override

from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
from yarl import URL

from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import Sample, Sampler
from tests.helpers.chats.chat_templates import QWEN2_5
from tests.helpers.chats.tokenizers import byte_level_tokenizer


def chat_tokenizer() -> Any:
    """Return the small tokenizer with a template that writes earlier answers as they were sampled."""
    tokenizer = copy.copy(byte_level_tokenizer())
    tokenizer.chat_template = QWEN2_5
    return tokenizer


class SamplerEngine(InferenceEngineInterface):
    """An engine whose tokens come from a sampler. It pauses and resumes as SkyRL's does.

    Args:
        sampler: Answers prompts of token ids.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._running = asyncio.Event()
        self._running.set()
        self.weight_version = 0
        self.sessions: Counter[str] = Counter()
        """Requests of each session."""

        self.finished: Counter[str] = Counter()
        self.salts: set[str | None] = set()
        self.params: list[Mapping[str, Any] | None] = []

    @property
    @override
    def model_name(self) -> str:
        return "policy"

    @override
    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        await self._running.wait()
        self.sessions.update(input_batch["session_ids"])
        self.salts.add(input_batch["cache_salt"])
        self.params.append(input_batch["sampling_params"])
        try:
            samples: Sequence[Sample] = [await self._sampler(prompt) for prompt in input_batch["prompt_token_ids"]]
        except EngineSettingsError as exc:  # as SkyRL's remote client raises it
            asked = RequestInfo(URL("http://engine"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://engine"))
            raise ClientResponseError(asked, (), status=401, message=str(exc)) from exc
        tokenizer = byte_level_tokenizer()
        return {
            "responses": [tokenizer.decode(list(sample.tokens), skip_special_tokens=True) for sample in samples],
            "response_ids": [list(sample.tokens) for sample in samples],
            "stop_reasons": [sample.stop_reason for sample in samples],
            "response_logprobs": [list(sample.logprobs or ()) for sample in samples],
        }

    @override
    async def finish_session(self, session_id: str) -> None:
        self.finished[session_id] += 1

    @override
    async def pause_generation(self) -> None:
        self._running.clear()

    @override
    async def resume_generation(self) -> None:
        self._running.set()

    def increment_weight_version(self) -> None:
        """Count a weight sync."""
        self.weight_version += 1

    @override
    def get_endpoint_url(self) -> str:
        raise NotImplementedError

    @override
    async def chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def render_chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    @override
    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    @override
    async def update_named_weights(self, request: Any) -> None:
        raise NotImplementedError

    @override
    async def load_lora_adapter(self, lora_name: str, lora_path: str) -> dict[str, Any]:
        raise NotImplementedError

    @override
    async def teardown(self) -> None:
        raise NotImplementedError

    @override
    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        raise NotImplementedError

    @override
    async def get_world_size(self) -> tuple[int, int]:
        raise NotImplementedError
