"""A stand-in for an engine that can't run here: SGLang's ``/generate``, as its documentation has it.

Source: https://docs.sglang.io/basic_usage/sampling_params.html and its page on the native API. What it samples is the
prompt's last tokens, reversed, and the end token.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.helpers.loopback import on_loopback

END = 0


class SGLangDouble:
    """The server. ``changes`` are put over an answer's ``meta_info``."""

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        """Statuses of the next answers, in place of 200."""
        self.refusal = "no"
        """What such an answer says."""
        self.models: dict[str, Any] | None = None
        """The page of models; None serves none."""
        self.changes: dict[str, Any] = {}

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.json_response({"error": {"message": self.refusal}}, status=status)
        wanted = [*reversed(body["input_ids"]), END]
        tokens = wanted[: body["sampling_params"]["max_new_tokens"]]
        is_whole = tokens == wanted
        reason = {"type": "stop", "matched": END} if is_whole else {"type": "length", "length": len(tokens)}
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(tokens),
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-token / 100, token, None] for token in tokens]
        whole = {"text": "not to be used", "output_ids": tokens, "meta_info": {**meta, **self.changes}}
        return web.json_response(whole)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models, status=200 if self.models is not None else 404)


@asynccontextmanager
async def sglang_double() -> AsyncGenerator[SGLangDouble]:
    double = SGLangDouble()
    app = web.Application()
    app.router.add_post("/generate", double.generate)
    app.router.add_get("/v1/models", double.list_models)
    async with on_loopback(app) as url:
        double.base_url = url
        yield double
