"""Any sampler behind vLLM's token-id completions, for what brings its own client of an engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

from harbor_gym.errors import ContextOverflowError
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import Sampler
from tests.helpers.loopback import on_loopback


@asynccontextmanager
async def completions_server(sampler: Sampler) -> AsyncGenerator[str]:
    """Serve a sampler on the running loop; yield the address."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        try:
            sample = await sampler(body["prompt"])
        except ContextOverflowError as exc:  # as vLLM answers
            error = {"message": str(exc), "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        except EngineSettingsError as exc:
            return web.json_response({"error": {"message": str(exc)}}, status=401)
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": sample.stop_reason,
            "token_ids": list(sample.tokens),
            "logprobs": {"token_logprobs": list(sample.logprobs or ())},
        }
        return web.json_response({"model": body["model"], "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    async with on_loopback(app) as url:
        yield url
