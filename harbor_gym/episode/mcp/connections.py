"""Connections to an MCP server inside a sandbox.

A connection does no work between two requests. The size of an answer is limited, so that no server fills this process's
memory.

The protocol's own SDK is not used: the frameworks pin incompatible releases of it (openenv and NeMo Gym one below 2,
verifiers 2.0.0), and these tools are for all of them. It would also validate answers by the server's schemas and their
regular expressions, in this process.

Source: modelcontextprotocol.io, 2025-06-18: basic/lifecycle, basic/transports; the transport "sse" is 2024-11-05's.
"""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, cast, override
from urllib.parse import urljoin, urlsplit

import httpx

from harbor_gym import __version__
from harbor_gym.errors import HarborGymError
from harbor_gym.sandboxes.extensions import PipedProcess
from harbor_gym.terminal.transports.channel import end_piped

PROTOCOL_VERSION = "2025-06-18"
"""The requested version of the protocol; a server may answer with another, and tools are the same in all."""

MAX_ANSWER_BYTES = 4 << 20
"""Limit on the bytes that a server sends for one request."""

_CHUNK_BYTES = 1 << 16
_METHOD_NOT_FOUND = -32601

type Message = dict[str, Any]


class ServerError(Exception):
    """A server gave no usable answer. The text can be shown to the policy."""


class ServerLostError(ServerError):
    """The connection is of no further use: a later request needs a new one."""


@contextlib.contextmanager
def _reading() -> Generator[None]:
    """Raise whatever a server's words made of a parser or of the HTTP client as a ``ServerLostError``.

    Its addresses, headers and versions go through httpx, urllib and codecs, and each has exceptions of its own.
    """
    try:
        yield
    except (ServerError, HarborGymError):
        raise
    except Exception as exc:
        raise ServerLostError(f"it can't be reached: {exc or type(exc).__name__}") from exc


class _Lines:
    """Splits arriving bytes into lines, in time linear in their number, however small the pieces are."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def add(self, data: bytes) -> Iterator[bytes]:
        """Yield each complete line, without its end."""
        self._held += data
        while (end := self._held.find(b"\n", self._searched)) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 1]
            self._searched = 0
            yield line.removesuffix(b"\r")
        self._searched = len(self._held)


class Connection(ABC):
    """One connection, for one request at a time."""

    def __init__(self) -> None:
        self._last = 0
        self._version: str | None = None
        self._room = MAX_ANSWER_BYTES

    async def initialize(self) -> Message:
        """Open the session and return the server's capabilities.

        Raises:
            ServerError: As :meth:`request`.
        """
        client = {"name": "harbor-gym", "version": __version__}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        result = await self.request("initialize", params)
        version = result.get("protocolVersion", PROTOCOL_VERSION)
        if not isinstance(version, str):
            raise ServerLostError("it states a version of the protocol that is no text")
        self._version = version
        with _reading():
            await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        capabilities = result.get("capabilities")
        return cast("Message", capabilities) if isinstance(capabilities, dict) else {}

    async def request(self, method: str, params: Message) -> Message:
        """Send one request and return its result.

        Requests of the server are refused, pings answered. After a cancellation the connection may be lost, which the
        next request finds out.

        Raises:
            ServerError: The server refuses the request.
            ServerLostError: The server ended, or sent too much or no answer.
        """
        self._last += 1
        self._room, number = MAX_ANSWER_BYTES, self._last
        sent = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        with _reading():
            async with contextlib.aclosing(self._exchange(sent)) as messages:
                async for message in messages:
                    if "method" in message:
                        await self._answer(message)
                    elif message.get("id") == number:
                        return _result(message)
        raise ServerLostError("it ended without an answer")

    @abstractmethod
    def _exchange(self, message: Message) -> AsyncGenerator[Message]:
        """Send a request and yield the server's messages from then on."""

    @abstractmethod
    async def _send(self, message: Message) -> None:
        """Send a message without waiting for an answer."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection, and a server that was started for it. Idempotent."""

    def _took(self, data: bytes) -> None:
        """Count bytes that were read for a request."""
        self._room -= len(data)
        if self._room < 0:
            raise ServerLostError(f"it sent more than {MAX_ANSWER_BYTES} bytes")

    async def _answer(self, request: Message) -> None:
        if "id" not in request:
            return
        known = {"result": {}} if request["method"] == "ping" else {"error": _error(str(request["method"]))}
        await self._send({"jsonrpc": "2.0", "id": request["id"], **known})


class StdioConnection(Connection):
    """A server that is a command in the sandbox.

    Args:
        process: The running command, which ends with the connection.
    """

    def __init__(self, process: PipedProcess) -> None:
        super().__init__()
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self._lines = _Lines()

    @override
    async def _exchange(self, message: Message) -> AsyncGenerator[Message]:
        await self._send(message)
        while True:
            try:
                data = await self._output.read(_CHUNK_BYTES)
            except OSError as exc:
                raise ServerLostError(f"it has ended ({exc})") from exc
            if not data:
                raise ServerLostError("it has ended")
            self._took(data)
            for found in [message for line in self._lines.add(data) for message in _messages(line)]:
                yield found
            await asyncio.sleep(0)  # reading a stream with more data does not yield to the loop

    @override
    async def _send(self, message: Message) -> None:
        try:
            self._input.write(_encoded(message) + b"\n")
            await self._input.drain()
        except (OSError, RuntimeError) as exc:
            raise ServerLostError("it has ended") from exc

    @override
    async def close(self) -> None:
        await end_piped(self._process)


class HttpConnection(Connection):
    """A server that answers each request over HTTP ("streamable HTTP").

    Args:
        url: The server's address, as the sandbox sees it.
        headers: Sent with each request, only to this address.
        socket: Path of a Unix socket of this machine that leads to the address.
    """

    def __init__(self, url: str, headers: Mapping[str, str], socket: str) -> None:
        super().__init__()
        self._url = self._endpoint = url
        transport = httpx.AsyncHTTPTransport(uds=socket, verify=urlsplit(url).scheme == "https")
        # No answer is decompressed here: a small one could fill this process's memory.
        own = {"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity"}
        self._client = httpx.AsyncClient(transport=transport, headers={**headers, **own}, timeout=None, trust_env=False)
        self._session: str | None = None

    @override
    async def _exchange(self, message: Message) -> AsyncGenerator[Message]:
        async with self._posted(message) as response:
            self._session = response.headers.get("mcp-session-id", self._session)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                async for _, data in self._events(response):
                    for found in _messages(data):
                        yield found
                return
            body = b"".join([chunk async for chunk in self._chunks(response)])
            for found in _messages(body):
                yield found

    @override
    async def _send(self, message: Message) -> None:
        async with self._posted(message):
            pass

    @override
    async def close(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _posted(self, message: Message) -> AsyncGenerator[httpx.Response]:
        known = {"mcp-session-id": self._session, "mcp-protocol-version": self._version}
        headers = {"content-type": "application/json", **{name: value for name, value in known.items() if value}}
        async with self._requested("POST", self._endpoint, content=_encoded(message), headers=headers) as response:
            yield response

    @contextlib.asynccontextmanager
    async def _requested(self, method: str, url: str, **settings: Any) -> AsyncGenerator[httpx.Response]:
        """Send a request and yield its response, whose body is not read yet."""
        response = await self._client.send(self._client.build_request(method, url, **settings), stream=True)
        try:
            if (further := response.next_request) is not None and _origin(further.url) == _origin(httpx.URL(url)):
                await response.aclose()
                response = await self._client.send(further, stream=True)
            if not response.is_success:
                raise ServerLostError(f"it answered with HTTP status {response.status_code}")
            yield response
        finally:
            await response.aclose()

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        async for chunk in response.aiter_raw():
            self._took(chunk)
            yield chunk

    async def _events(self, response: httpx.Response) -> AsyncGenerator[tuple[str, bytes]]:
        """Yield the kind and the data of each event of a stream of server-sent events."""
        kind, data, lines = "message", list[bytes](), _Lines()
        async for chunk in self._chunks(response):
            for line in lines.add(chunk):
                name, _, value = line.partition(b":")
                if not line:
                    if data:
                        yield kind, b"\n".join(data)
                    kind, data = "message", []
                elif name == b"data":
                    data.append(value.removeprefix(b" "))
                elif name == b"event":
                    kind = value.strip().decode(errors="replace")


class SseConnection(HttpConnection):
    """A server that takes requests at one address and answers on a stream of events (the older transport "sse")."""

    def __init__(self, url: str, headers: Mapping[str, str], socket: str) -> None:
        super().__init__(url, headers, socket)
        self._open = contextlib.AsyncExitStack()
        self._stream: AsyncGenerator[tuple[str, bytes]] | None = None

    @override
    async def _exchange(self, message: Message) -> AsyncGenerator[Message]:
        if self._stream is None:
            self._stream = self._events(await self._open.enter_async_context(self._requested("GET", self._url)))
            async for kind, data in self._stream:
                if kind == "endpoint":
                    self._endpoint = urljoin(self._url, data.decode(errors="replace"))
                    break
            if _origin(httpx.URL(self._endpoint)) != _origin(httpx.URL(self._url)):
                raise ServerLostError("it takes requests at another address")
        await self._send(message)
        async for _, data in self._stream:
            for found in _messages(data):
                yield found

    @override
    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
        await self._open.aclose()
        await super().close()


def _messages(data: bytes) -> list[Message]:
    """Return the messages in a server's bytes; none if they are no JSON."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return []
    found = cast("list[Any]", value if isinstance(value, list) else [value])
    return [cast("Message", message) for message in found if isinstance(message, dict)]


def _result(message: Message) -> Message:
    match message:
        case {"error": {"message": str() as text}}:
            raise ServerError(text)
        case {"result": dict() as result}:
            return cast("Message", result)
        case _:
            raise ServerError("its answer has neither a result nor an error")


def _error(method: str) -> Message:
    return {"code": _METHOD_NOT_FOUND, "message": f"no method {method}"}


def _encoded(message: Message) -> bytes:
    return json.dumps(message).encode()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
