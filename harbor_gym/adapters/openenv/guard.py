"""The checks between the network and OpenEnv's application: keys, and sizes and times of requests.

The server limits a WebSocket's messages (uvicorn: ``ws_max_size``), which arrive here whole.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

from harbor_gym._runtime.shielded import shielded

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SOCKET_PATH = "/ws"
"""The path of the only WebSocket; each connection is one session."""

_OPEN_PATHS = frozenset({"/health"})
"""The paths that need no token: they only report that the server runs."""

_MAX_PENDING = 4
"""Messages that a client may send ahead of their answers."""

_ABNORMAL, _POLICY, _IDLE = 1006, 1008, 4008
"""WebSocket close codes; 4008 is in the private range."""


class Guard:
    """An ASGI application around OpenEnv's.

    Requires the token, bounds bodies and the messages that wait, closes idle sessions, and cancels the work of a client
    that vanished.

    Args:
        app: OpenEnv's application.
        token: The token that a client must send as ``Authorization: Bearer …``.
        max_body_bytes: Longest body of a request.
        max_connections: WebSockets and requests with the token that are served at once.
        request_timeout_sec: Longest wait for a request's body, in seconds.
        idle_timeout_sec: Longest wait for a session's next message, in seconds.
    """

    def __init__(
        self,
        app: Application,
        *,
        token: str,
        max_body_bytes: int,
        max_connections: int,
        request_timeout_sec: float,
        idle_timeout_sec: float,
    ) -> None:
        self._app = app
        self._digest = _digest(token.encode())
        self._max_bytes, self._idle_sec = max_body_bytes, idle_timeout_sec
        self._max_connections, self._request_sec = max_connections, request_timeout_sec
        self._served = 0
        """Connections with the token that are being served."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection, or the application's lifespan."""
        match scope["type"]:
            case "http":
                await self._serve_http(scope, receive, send)
            case "websocket":
                await self._serve_socket(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """Return status and reason if a connection is refused, else None."""
        if not self._is_authorized(scope):
            return 401, "a token is required: send it as 'Authorization: Bearer TOKEN'"
        if self._served >= self._max_connections:
            return 503, f"{self._served} connections are served already"
        if scope["type"] == "websocket" and (scope["path"] != SOCKET_PATH or scope["query_string"]):
            # A query could name another client's session.
            return 404, f"sessions are opened at {SOCKET_PATH}, without parameters, one for each connection"
        return None

    def _is_authorized(self, scope: MutableMapping[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        kind, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        is_equal = hmac.compare_digest(_digest(token.strip()), self._digest)
        return kind.lower() == b"bearer" and is_equal

    @contextlib.contextmanager
    def _place(self) -> Generator[None]:
        self._served += 1
        try:
            yield
        finally:
            self._served -= 1

    async def _serve_http(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["path"] in _OPEN_PATHS:
            await self._app(scope, _replaying(b"", receive), send)
            return
        if (refusal := self._refusal(scope)) is not None:
            await _respond(send, "http.response", *refusal)
            return
        with self._place():
            body = await self._body(receive)
            if isinstance(body, bytes):
                await self._app(scope, _replaying(body, receive), send)
            else:
                await _respond(send, "http.response", *body)

    async def _body(self, receive: Receive) -> bytes | tuple[int, str]:
        """Return a request's body, or status and reason of its refusal."""
        try:
            async with asyncio.timeout(self._request_sec):
                read = await _read_body(receive, self._max_bytes)
        except TimeoutError:
            return 408, f"no whole body within {self._request_sec:g} s"
        if isinstance(read, bytes):
            return read
        return (413, f"the body is longer than {self._max_bytes} bytes") if read else (400, "no whole body")

    async def _serve_socket(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None:
            link = _Link(receive, send, idle_sec=self._idle_sec)
            with self._place():
                await link.run(lambda: self._app(scope, link.receive, link.send))
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await _respond(send, "websocket.http.response", *refusal)
        else:
            await send({"type": "websocket.close", "code": _POLICY, "reason": refusal[1]})


class _Link:
    """One WebSocket. Messages are read ahead, so that a vanished client is noticed while its episode works."""

    def __init__(self, receive: Receive, send: Send, *, idle_sec: float) -> None:
        self._receive, self._send, self._idle_sec = receive, send, idle_sec
        self._pending: asyncio.Queue[Message] = asyncio.Queue()
        self._is_waiting = False
        self._end: Message | None = None
        """The message that the application receives after the connection ended."""

    async def run(self, app: Callable[[], Awaitable[None]]) -> None:
        """Run the application until its cleanup is done."""
        work = asyncio.ensure_future(app())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait((work, reading), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self._is_waiting:
                work.cancel()  # in a reset or a step, whose result no client will read
            await asyncio.wait((work,))
        finally:
            reading.cancel()
            if not work.cancelling():  # a second cancellation would interrupt the cleanup
                work.cancel()
            await shielded(asyncio.wait((work, reading)))
        if not work.cancelled():
            work.result()
        if not reading.cancelled():
            reading.result()

    async def receive(self) -> Message:
        """Return the client's next message; for the application."""
        if self._end is not None:
            return self._end
        self._is_waiting = True
        try:
            async with asyncio.timeout(self._idle_sec):
                return await self._pending.get()
        except TimeoutError:
            await self._close(_IDLE, f"no message for {self._idle_sec:g} s")
            return self._end or {}
        finally:
            self._is_waiting = False

    async def send(self, message: Message) -> None:
        """Send the application's message, unless the connection has ended."""
        if self._end is None:
            await self._send(message)

    async def _read(self) -> None:
        try:
            while self._end is None:
                await self._take(await self._receive())
        finally:
            if self._end is None:
                self._finish({"type": "websocket.disconnect", "code": _ABNORMAL})

    async def _take(self, message: Message) -> None:
        if message["type"] == "websocket.disconnect":
            self._finish(message)
        elif self._pending.qsize() >= _MAX_PENDING:
            await self._close(_POLICY, f"more than {_MAX_PENDING} messages ahead of their answers")
        else:
            self._pending.put_nowait(message)

    async def _close(self, code: int, reason: str) -> None:
        self._finish({"type": "websocket.disconnect", "code": code, "reason": reason})
        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def _finish(self, end: Message) -> None:
        self._end = end
        self._pending.put_nowait(end)


def _digest(token: bytes) -> bytes:
    # All digests have the same length, so the comparison takes the same time for every token.
    return hashlib.sha256(token).digest()


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` for the application: first the body that was read, then the client's later messages."""
    unread = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return replay


async def _read_body(receive: Receive, longest: int) -> bytes | bool:
    """Return a body; True if it is too long, False if the client disconnected."""
    parts, size, has_more = list[bytes](), 0, True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            return False
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        has_more = message.get("more_body", False)
        if size > longest:
            return True
    return b"".join(parts)


async def _respond(send: Send, kind: str, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if kind == "http.response":
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
