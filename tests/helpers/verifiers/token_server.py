"""A token-id server: the endpoints of vLLM that verifiers' clients ask, in front of any sampler.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html and verifiers 0.4 (``clients/train.py``,
``clients/eval.py``), which read ``/inference/v1/generate``, ``/v1/chat/completions`` and ``/v1/models``.
"""

import dataclasses
import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from harbor_gym import Sample, Sampler, SamplerError
from harbor_gym.errors import ContextOverflowError
from harbor_gym.types import ChatMessage
from tests.helpers.loopback import on_loopback


class Codec(Protocol):
    """What the endpoint for chats needs; :class:`harbor_gym.HFCodec` has it."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]: ...

    def text(self, sampled: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Exchange:
    """One answered request."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]


@dataclass
class TokenServer:
    """Answers from a sampler, and records every exchange."""

    sample: Sampler
    model: str = "policy"
    codec: Codec | None = None
    """Writes the chats of ``/v1/chat/completions``."""

    max_model_len: int = 32_768
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What is put over the message of a chat's answer."""

    statuses: list[int] = field(default_factory=list[int])
    """Statuses of the next answers, in place of 200."""

    log: Path | None = None
    """Where every exchange is appended as a line of JSON, too."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    base_url: str = ""

    @property
    def conversations(self) -> set[tuple[int, ...]]:
        """Prompt and sample of every exchange, one behind the other."""
        return {(*item.prompt, *item.sampled) for item in self.exchanges}

    async def models(self, _: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def generate(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        exchange, reason = await self._answer(list(body["token_ids"]))
        content = [
            {"token": f"token_id:{token}", "logprob": logprob}
            for token, logprob in zip(exchange.sampled, exchange.logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": exchange.sampled,
            "finish_reason": reason,
            "logprobs": {"content": content},
        }
        return web.json_response({"request_id": uuid.uuid4().hex, "choices": [choice], "usage": _usage(exchange)})

    async def chat(self, request: web.Request) -> web.Response:
        assert self.codec is not None
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        exchange, reason = await self._answer(self.codec.prompt(body["messages"]))
        message = {"role": "assistant", "content": self.codec.text(exchange.sampled), **self.changes}
        return web.json_response(
            {
                "id": uuid.uuid4().hex,
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": reason, "message": message}],
                "usage": _usage(exchange),
            }
        )

    async def _body(self, request: web.Request) -> dict[str, Any] | web.Response:
        body = await request.json()
        self.requests.append(body)
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.json_response({"error": {"message": f"status {status}", "type": "error"}}, status=status)
        return body

    async def _answer(self, prompt: list[int]) -> tuple[Exchange, str]:
        try:
            sample: Sample = await self.sample(prompt)
        except ContextOverflowError as exc:  # as vLLM answers
            error = {"message": str(exc), "type": "BadRequestError", "param": None, "code": 400}
            body = json.dumps({"error": error})
            raise web.HTTPBadRequest(text=body, content_type="application/json") from exc
        except SamplerError as exc:
            raise web.HTTPServiceUnavailable(text=str(exc)) from exc
        logprobs = list(sample.logprobs or [-0.5] * len(sample.tokens))
        exchange = Exchange(prompt, list(sample.tokens), logprobs)
        self.exchanges.append(exchange)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{json.dumps(dataclasses.asdict(exchange))}\n")
        return exchange, sample.stop_reason


@asynccontextmanager
async def serve(server: TokenServer, port: int = 0) -> AsyncGenerator[TokenServer]:
    """Serve until the block ends; ``base_url`` is the address then."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/inference/v1/generate", server.generate)
    app.router.add_post("/v1/chat/completions", server.chat)
    async with on_loopback(app, port=port) as url:
        server.base_url = f"{url}/v1"
        yield server


def _usage(exchange: Exchange) -> dict[str, int]:
    prompt, completion = len(exchange.prompt), len(exchange.sampled)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
