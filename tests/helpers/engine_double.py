"""A stand-in for engines and endpoints that can't run here: their dialects over one policy, and their failures.

Sources: vLLM's OpenAI-compatible server (https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html) and its
``/inference/v1/generate``; SGLang's native API (https://docs.sglang.io/basic_usage/sampling_params.html); NeMo RL's
``vllm_worker_async.py`` (the last message with token ids is the prefix of the prompt) and ``routed_experts_codec.py``;
NeMo Gym 0.7.0's ``responses_api_models/vllm_model/app.py``.
"""

import asyncio
import base64
import contextlib
import dataclasses
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from aiohttp import web

from harbor_gym.errors import ContextOverflowError, SamplerError
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import ChatMessage, RoutedExperts, Sample, Sampler
from tests.helpers.chats.character_codec import END
from tests.helpers.gateway.clients import ThinkingCodec
from tests.helpers.loopback import on_loopback

type Json = dict[str, Any]
type Mode = int | str | tuple[int, Any]
"""How a request is answered: by a status (200 is the policy's answer), by a mode of ``MODES``, or by this JSON."""

type Writer = Callable[[Sequence[Mapping[str, Any]]], str]
"""Writes the answer to a chat's messages."""


class Codec(Protocol):
    """Writes chats in tokens; :class:`harbor_gym.HFCodec` does too."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]: ...

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]: ...

    def text(self, sampled: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Exchange:
    """One answer of the policy."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    stop_reason: str
    routes: str | None = None
    """Routed experts of prompt and sample, as NeMo RL's engine packs them."""

    @property
    def usage(self) -> dict[str, int]:
        prompt, completion = len(self.prompt), len(self.sampled)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def reversed_prompt(prompt: Sequence[int]) -> Sample:
    """Sample the prompt's tokens, reversed, and the end token."""
    tokens = [*reversed(prompt), END]
    return Sample(tokens, [-token / 100 for token in tokens])


def in_turn(*answers: str) -> Writer:
    """Return a writer of one answer after the other, however the chats interleave; the last one is repeated."""

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        return answers[min(sum(item["role"] == "assistant" for item in messages), len(answers) - 1)]

    return write


_HTML = b"<html>\n<head><title>Welcome</title></head>\n<body>nginx</body>\n</html>\n"

MODES: Mapping[str, tuple[int, Mapping[str, str], Any]] = {
    "unknown model": (400, {}, {"error": {"message": "refused\nfor a reason", "code": "model_not_found"}}),
    "overflow": (400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
    "HTML": (200, {"Content-Type": "text/html"}, _HTML),
    "HTML 502": (502, {"Content-Type": "text/html"}, _HTML),
    "bad UTF-8": (200, {}, b'{"choices": "\xff\xfe"}'),
    "empty": (200, {}, b""),
    "no message": (200, {}, {"choices": []}),
}
"""Answers that fail, by name: status, headers, and JSON or bytes."""

_ON_THE_WIRE = ("cut", "hang", "trickle")
"""Modes that send the policy's answer, badly."""


class EngineDouble:
    """The engine. Its attributes make it an older one, or a broken one.

    Args:
        policy: A sampler of token ids, or a writer of the answers to chats.
        codec: Writes the prompts of chats, and reads the tokens of the answers.
        key: The key that is required, and repeated where it is wrong; None requires none.
        model: The name on the page of models.
        max_context_tokens: The window: longer prompts are refused as vLLM refuses them.
        log: A file to which every exchange is appended as a line of JSON.
    """

    def __init__(
        self,
        policy: Sampler = reversed_prompt,
        *,
        write: Writer | None = None,
        codec: Codec | None = None,
        key: str | None = None,
        model: str = "policy",
        max_context_tokens: int = 1 << 20,
        log: Path | None = None,
    ) -> None:
        self._policy, self._write, self._codec = policy, write, codec or ThinkingCodec()
        self.key, self.model, self._max_context_tokens, self._log = key, model, max_context_tokens, log
        self.url = ""
        self.requests: list[Json] = []
        self.keys: list[str] = []
        self.exchanges: list[Exchange] = []
        self.modes: list[Mode] = []
        """How the next requests are answered."""
        self.always: Mode = 200
        """How all others are."""
        self.refusal = "refused\nfor a reason"
        """The message of a status."""
        self.headers: dict[str, str] = {"Retry-After-Ms": "1"}
        """The headers of a status."""
        self.changes: Mapping[str, Any] = {}
        """Fields put over the answer's choice, message or ``meta_info``."""
        card = {"id": model, "object": "model", "max_model_len": max_context_tokens}
        self.models: Json | None = {"object": "list", "data": [card]}
        """The page of models; None is a 404."""
        self.returns_token_ids = True
        self.stop: Literal["kept", "left out", "ignored"] = "kept"
        """What becomes of a token of ``stop_token_ids`` that ends a message."""
        self.knows_prefix = True
        """Whether a chat's prompt begins with the sampled tokens; else the whole chat is rendered anew."""
        self.propagates_overflow = True
        """Whether a prompt that does not fit is a status 400; else NeMo Gym's server answers with an empty message."""
        self.released = asyncio.Event()
        """Set: requests that hang are answered."""
        self.release_at: int | None = None
        """The request, from 1, that releases them."""

    @property
    def base_url(self) -> str:
        """The address that clients of OpenAI's take."""
        return f"{self.url}/v1"

    @property
    def conversations(self) -> set[tuple[int, ...]]:
        """Prompt and sample of every exchange, one behind the other."""
        return {(*item.prompt, *item.sampled) for item in self.exchanges}

    def _receive(self, body: Json) -> Mode:
        self.requests.append(body)
        if len(self.requests) == self.release_at:
            self.released.set()
        return self.modes.pop(0) if self.modes else self.always

    async def _reply(self, path: str, body: Json, mode: Mode) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers, and JSON or bytes."""
        if isinstance(mode, tuple):
            return mode[0], {}, mode[1]
        if isinstance(mode, int) and mode != 200:
            return mode, self.headers, _error(self.refusal, mode)
        if isinstance(mode, str) and mode not in _ON_THE_WIRE:
            return MODES[mode]
        try:
            return 200, {}, await DIALECTS[path](self, body)
        except ContextOverflowError as exc:
            return 400, {}, _error(str(exc), 400)
        except EngineSettingsError as exc:
            return 401, {}, _error(str(exc), 401)
        except (SamplerError, TimeoutError) as exc:
            return 503, self.headers, _error(str(exc), 503)

    async def post(self, body: Json) -> tuple[int, Mapping[str, str], bytes]:
        """Answer as NeMo Gym's model server, in this process; ``refusal`` is the answer of the engine behind it."""
        sent, mode = json.loads(json.dumps(body)), self._receive(body)
        status, headers, document = await self._reply("/v1/responses", sent, mode)
        if headers:
            document = f"Hit an exception in policy_model calling an inner server: b'{self.refusal}'"
        return status, headers, json.dumps(document).encode()

    async def answer(
        self, prompt: list[int], *, text: str | None = None, limit: int | None = None, stop: Sequence[int] = ()
    ) -> Exchange:
        """Return the policy's answer, or a text in its place, cut behind a stop token or at a limit of tokens.

        Raises:
            ContextOverflowError: The prompt is longer than the window.
        """
        if len(prompt) > self._max_context_tokens:
            window = f"This model's maximum context length is {self._max_context_tokens} tokens"
            raise ContextOverflowError(f"{window}. Please reduce the length of the messages.")
        sample = await self._policy(prompt) if text is None else Sample([*map(ord, text), END])
        if ends := [place for place, token in enumerate(sample.tokens) if token in stop and self.stop != "ignored"]:
            end = ends[0] + (self.stop == "kept")
            sample = Sample(sample.tokens[:end], sample.logprobs and sample.logprobs[:end])
        logprobs = list(sample.logprobs or [-0.5] * len(sample.tokens))
        is_cut = limit is not None and limit < len(sample.tokens)
        reason = "length" if is_cut else sample.stop_reason
        routes = None if sample.routed_experts is None else _packed(sample.routed_experts)
        exchange = Exchange(prompt, list(sample.tokens[:limit]), logprobs[:limit], reason, routes)
        self.exchanges.append(exchange)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(dataclasses.asdict(exchange))}\n")
        return exchange

    async def complete(self, body: Json) -> Json:
        """Answer as vLLM's completions do."""
        done = await self.answer(body["prompt"], limit=body.get("max_tokens"), stop=body.get("stop_token_ids", ()))
        names = [f"token_id:{token}" for token in done.sampled]
        logprobs = {"tokens": names, "token_logprobs": done.logprobs, "top_logprobs": [{} for _ in names]}
        choice: Json = {"index": 0, "text": "not to be used", "finish_reason": done.stop_reason, "logprobs": logprobs}
        if self.returns_token_ids and body.get("return_token_ids"):
            choice |= {"token_ids": done.sampled, "prompt_token_ids": done.prompt}
        choices = [{**choice, **self.changes}]
        return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": choices}

    async def generate_tokens(self, body: Json) -> Json:
        """Answer as vLLM's ``/inference/v1/generate`` does."""
        done = await self.answer(list(body["token_ids"]))
        choice = {"index": 0, "token_ids": done.sampled, "finish_reason": done.stop_reason, "logprobs": _content(done)}
        return {"request_id": f"{len(self.exchanges)}", "choices": [choice], "usage": done.usage}

    async def generate(self, body: Json) -> Json:
        """Answer as SGLang's ``/generate`` does."""
        asked = body["sampling_params"]
        limit, stop = asked["max_new_tokens"], asked.get("stop_token_ids", ())
        done = await self.answer(body["input_ids"], limit=limit, stop=stop)
        meta: Json = {"id": "1", "finish_reason": {"type": done.stop_reason}, **done.usage}
        if body.get("return_logprob"):
            pairs = zip(done.logprobs, done.sampled, strict=True)
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        return {"text": "not to be used", "output_ids": done.sampled, "meta_info": {**meta, **self.changes}}

    async def chat(self, body: Json) -> Json:
        """Answer as chat completions do."""
        messages = body["messages"]
        done = await self.answer(self._prompt(messages), text=self._write and self._write(messages))
        message: Json = {"role": "assistant", "content": self._codec.text(done.sampled), **self.changes}
        if isinstance(self._codec, ThinkingCodec) and (reasoning := self._codec.reasoning(done.sampled)):
            message["reasoning_content"] = reasoning
        choice: Json = {"index": 0, "finish_reason": done.stop_reason, "message": message}
        whole: Json = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        if body.get("logprobs") or body.get("return_token_ids"):
            choice |= {"token_ids": done.sampled, "logprobs": _content(done)}
            whole["prompt_token_ids"] = done.prompt
        return {**whole, "choices": [choice], "usage": done.usage}

    async def respond(self, body: Json) -> Json:
        """Answer as NeMo Gym's model server does."""
        try:
            done = await self.answer(self._prompt(body["input"]))
        except ContextOverflowError:
            if self.propagates_overflow:
                raise
            done, text = None, ""
        else:
            text = self._codec.text(done.sampled)
        message: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        message["content"] = [{"type": "output_text", "text": text, "annotations": []}]
        if done is not None and self.returns_token_ids:
            message |= {"prompt_token_ids": done.prompt, "generation_token_ids": done.sampled}
            message["generation_log_probs"] = done.logprobs
            if done.routes is not None:
                message["routed_experts"] = done.routes
        is_cut = done is None or done.stop_reason == "length"
        return {"output": [message], "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None}

    def _prompt(self, messages: Sequence[Json]) -> list[int]:
        trained = [place for place, message in enumerate(messages) if message.get("prompt_token_ids")]
        if not trained or not self.knows_prefix:
            chat = [{**item, "content": _text(item)} for item in messages]
            return self._codec.prompt(chat)  # pyright: ignore[reportArgumentType]  # as it came over the wire
        last = messages[trained[-1]]
        sampled = last["generation_token_ids"]
        (message,) = messages[trained[-1] + 1 :]
        return [*last["prompt_token_ids"], *sampled, *self._codec.next_turn(sampled, _text(message))]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request over HTTP."""
        if self.key is not None and (given := request.headers.get("Authorization", "")) != f"Bearer {self.key}":
            return web.json_response({"error": f"wrong key {given}"}, status=401)
        self.keys.append(request.headers.get("Authorization", ""))
        body = await request.json()
        status, headers, document = await self._reply(request.path, body, mode := self._receive(body))
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        if mode in ("cut", "trickle"):
            return await _stream(request, content, is_cut=mode == "cut")
        if mode == "hang":
            await self.released.wait()
        return web.Response(body=content, status=status, headers={"Content-Type": "application/json", **headers})

    async def list_models(self, _: web.Request) -> web.Response:
        return web.json_response(self.models, status=200 if self.models is not None else 404)


DIALECTS: Mapping[str, Callable[[EngineDouble, Json], Awaitable[Json]]] = {
    "/v1/completions": EngineDouble.complete,
    "/inference/v1/generate": EngineDouble.generate_tokens,
    "/generate": EngineDouble.generate,
    "/v1/chat/completions": EngineDouble.chat,
    "/v1/responses": EngineDouble.respond,
}


@contextlib.asynccontextmanager
async def serve[E: EngineDouble](engine: E, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncGenerator[E]:
    """Serve on the running loop until the block ends; ``url`` is the address then."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/v1/models", engine.list_models)
    for path in DIALECTS:
        app.router.add_post(path, engine.handle)
    async with on_loopback(app, port=port, tls=tls) as engine.url:
        yield engine


def _error(message: str, status: int) -> Json:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def _content(done: Exchange) -> Json:
    pairs = zip(done.sampled, done.logprobs, strict=True)
    return {"content": [{"token": f"token_id:{token}", "logprob": value, "top_logprobs": []} for token, value in pairs]}


def _packed(routes: RoutedExperts) -> str:
    """Return the envelope of whole routes; no pass over the last token was made, and the engine fills its row in."""
    assert routes.start == 0
    choices = routes.experts.shape[2]
    last = np.broadcast_to(np.arange(choices), (1, *routes.experts.shape[1:]))
    rows = np.concatenate([routes.experts, last]).astype("<i2")
    shape = "x".join(map(str, rows.shape))
    return f"nrlre1:int16:{shape}:{base64.b64encode(rows.tobytes()).decode()}"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def _stream(request: web.Request, body: bytes, *, is_cut: bool) -> web.StreamResponse:
    """Answer a byte at a time, or promise the whole and close after the first."""
    headers = {"Content-Type": "application/json", **({"Content-Length": f"{len(body)}"} if is_cut else {})}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    for byte in body[: 1 if is_cut else None]:
        await response.write(bytes([byte]))
        await asyncio.sleep(0)
    if is_cut:
        assert request.transport is not None
        request.transport.close()
        return response
    await response.write_eof()
    return response
