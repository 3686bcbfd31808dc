"""An OpenAI-style chat endpoint on loopback that can fail in the ways that endpoints do."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from tests.helpers.loopback import on_loopback

type Failing = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers a request; None lets the endpoint answer as it does otherwise."""

_RELEASED = web.AppKey("released", asyncio.Event)

_HTML = "<html>\n<head><title>Welcome</title></head>\n<body>nginx</body>\n</html>\n"


def _status(status: int, *, code: str = "", headers: Mapping[str, str] | None = None) -> Failing:
    async def answer(_request: web.Request) -> web.Response:
        error = {"error": {"message": "refused\nfor a reason", "code": code or status}}
        return web.json_response(error, status=status, headers=headers)

    return answer


def _body(body: bytes, kind: str = "application/json", status: int = 200) -> Failing:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, status=status)

    return answer


async def _cut(request: web.Request) -> web.StreamResponse:
    """Promise more than comes."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def _trickle(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    """Answer a byte at a time."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for byte in json.dumps(document).encode():
        await response.write(bytes([byte]))
        await asyncio.sleep(0)
    await response.write_eof()
    return response


async def _hang(request: web.Request) -> None:
    await request.app[_RELEASED].wait()


MODES: dict[str, Failing] = {
    **{str(status): _status(status) for status in (400, 401, 403, 404, 408, 409, 500, 502)},
    "unknown model": _status(400, code="model_not_found"),
    "429": _status(429, headers={"Retry-After-Ms": "1"}),
    "HTML": _body(_HTML.encode(), "text/html"),
    "HTML 502": _body(_HTML.encode(), "text/html", 502),
    "bad UTF-8": _body(b'{"choices": "\xff\xfe"}'),
    "empty": _body(b""),
    "no message": _body(b'{"choices": []}'),
    "cut": _cut,
    "hang": _hang,
}
"""How an endpoint fails, by name."""


class ChatDouble:
    """The endpoint: it answers by the number of its answers in the chat.

    Args:
        answers: What it answers.
        key: The key that it requires, and repeats where it is wrong; None requires none.
    """

    def __init__(self, *answers: str, key: str | None = None) -> None:
        self.answers, self.key = answers, key
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self.modes: list[str] = []
        """How the next requests fail."""
        self.always: str | None = None
        """How all others do; None answers them."""
        self.released = asyncio.Event()
        """Set: requests that hang are answered."""
        self.release_at: int | None = None
        """The request, from 1, that releases them."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if self.key is not None and (shown := request.headers.get("Authorization", "")) != f"Bearer {self.key}":
            return web.json_response({"error": f"wrong key {shown}"}, status=401)
        body = await request.json()
        self.requests.append(body)
        if len(self.requests) == self.release_at:
            self.released.set()
        mode = self.modes.pop(0) if self.modes else self.always
        is_trickling = mode == "trickle"
        if mode is not None and not is_trickling and (failure := await MODES[mode](request)) is not None:
            return failure
        turn = sum(item["role"] == "assistant" for item in body["messages"])
        choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": self.answers[turn]}}
        usage = {"prompt_tokens": 100 + turn, "completion_tokens": 7}
        document = {"choices": [choice], "usage": usage}
        return await _trickle(request, document) if is_trickling else web.json_response(document)


@contextlib.asynccontextmanager
async def chat_double(
    *answers: str, key: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[ChatDouble]:
    """Serve an endpoint on the running loop."""
    double = ChatDouble(*answers, key=key)
    app = web.Application()
    app[_RELEASED] = double.released
    app.router.add_post("/v1/chat/completions", double.answer)
    async with on_loopback(app, tls=tls) as url:
        double.url = url
        yield double
