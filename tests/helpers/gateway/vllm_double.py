"""A stand-in for an engine that can't run here: vLLM's token-id completions, as its documentation has them.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (completions API and its extra parameters).
What it samples is the prompt's last tokens, reversed, and the end token.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.helpers.loopback import on_loopback

END = 0


class VllmDouble:
    """The server. Its attributes make it an older engine, or a broken one."""

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.statuses: list[int] = []
        """Statuses of the next answers, in place of 200."""
        self.headers: dict[str, str] = {}
        """Headers of these answers."""
        self.refusal = "no"
        """What such an answer says."""
        self.models: dict[str, Any] | None = None
        """The page of models; None serves none."""
        self.returns_token_ids = True
        self.names_token_ids = True
        self.changes: dict[str, Any] = {}
        """What is put over the choice."""

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.json_response(
                {"error": {"message": self.refusal, "type": "BadRequestError", "code": status}},
                status=status,
                headers=self.headers,
            )
        wanted = [*reversed(body["prompt"]), END]
        tokens = wanted[: body["max_tokens"]]
        choice: dict[str, Any] = {
            "index": 0,
            "text": "not to be used",
            "finish_reason": "stop" if tokens == wanted else "length",
            "stop_reason": None,
            "logprobs": {
                "tokens": [f"token_id:{token}" if self.names_token_ids else chr(token) for token in tokens],
                "token_logprobs": [-token / 100 for token in tokens],
                "top_logprobs": [{} for _ in tokens],
                "text_offset": list(range(len(tokens))),
            },
        }
        if self.returns_token_ids and body.get("return_token_ids"):
            choice |= {"token_ids": tokens, "prompt_token_ids": body["prompt"]}
        choice |= self.changes
        return web.json_response(
            {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}
        )

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models, status=200 if self.models is not None else 404)


@asynccontextmanager
async def vllm_double() -> AsyncGenerator[VllmDouble]:
    double = VllmDouble()
    app = web.Application()
    app.router.add_post("/v1/completions", double.complete)
    app.router.add_get("/v1/models", double.list_models)
    async with on_loopback(app) as url:
        double.base_url = url
        yield double
