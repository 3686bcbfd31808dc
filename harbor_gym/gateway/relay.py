"""The training side of Harbor's inference relay: a session of the gateway behind one WebSocket to Harbor's server.

An agent in any sandbox calls Harbor's server, which passes each request on over the WebSocket that this side opened, so
that this machine need not be reachable from outside. A request is answered on the connection that brought it, or not at
all: after a lost connection the agent repeats its request, as a new one.

Source: ``harbor/server/README.md`` and ``harbor/server/relay.py`` of Harbor 0.26.
"""

import asyncio
import base64
import contextlib
import io
import json
import logging
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.gateway.server import Gateway
from harbor_gym.gateway.session import Session

_HEARTBEAT_SEC = 20.0
"""A connection that does not answer for this long counts as lost."""

_FIRST_WAIT_SEC, _LONGEST_WAIT_SEC = 0.25, 4.0
"""Waits between two attempts to connect; doubled after each attempt."""

_MAX_FRAME_BYTES = 24 * 1024 * 1024
"""A request of 16 MiB, the relay's limit, as base64 with its headers."""

_CHUNK_BYTES = 1024 * 1024
"""A part of an answer: the relay holds at most 256 of them, and 16 MiB, for an agent that reads slowly."""

_PASSED_ON = ("content-type", "content-encoding")
"""Headers that the gateway reads. The agent's key is for the relay, and is not passed on."""

_WRONG_SETTINGS = {401: "it refuses the API key: set HARBOR_API_KEY", 404: "it is no Harbor server of 0.26 or later"}
_WRONG_SETTINGS[403] = "it has no inference relay: start it with --relay-url"

logger = logging.getLogger(__name__)

_reached: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""The servers that have accepted a connection, each with its credentials. A later refusal, such as a proxy's while the
server restarts, says nothing about the settings."""


@dataclass(frozen=True)
class RelayAddress:
    """The address of a session of Harbor's relay."""

    url: str
    """Harbor's server, without a trailing slash."""

    session_id: str
    """The relay's name of the session; one connection at a time may use it."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers that authenticate to the server."""


class RelayLink:
    """A session's connection to a relay, which reconnects whenever it is lost. Get one from :func:`relayed`."""

    def __init__(self, session: Session, address: tuple[str, int], relay: RelayAddress) -> None:
        self.reconnects = 0
        """How often the connection was lost, and made again."""
        self.rollout_id: str | None = None
        """The only rollout whose requests are answered; None answers any."""
        self.base_url = f"http://{address[0]}:{address[1]}/s/{session.key}"
        """The session's URL at the gateway."""
        self._session, self._relay = session, relay
        self._connected = asyncio.Event()
        self._reached = _reached.setdefault(asyncio.get_running_loop(), set())
        self._server = (relay.url, *relay.headers.values())
        self._failure = ""

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            UsageError: The server refuses connections with these settings, and has never accepted one.
        """
        wait = _FIRST_WAIT_SEC
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_LONGEST_WAIT_SEC)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while True:
                try:
                    await self._connect(client)
                    wait = _FIRST_WAIT_SEC
                except aiohttp.WSServerHandshakeError as exc:
                    if self._server not in self._reached and (why := _WRONG_SETTINGS.get(exc.status)) is not None:
                        raise UsageError(f"Harbor's server at {self._relay.url} can't be used: {why}") from None
                    self._failure = f"it answered with status {exc.status}"  # 409 until it misses a lost connection
                except (aiohttp.ClientError, OSError) as exc:
                    self._failure = str(exc) or type(exc).__name__
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SEC)

    async def wait_connected(self, timeout_sec: float) -> None:
        """Wait for the first connection.

        Raises:
            SandboxStartError: No connection was made within ``timeout_sec``.
        """
        try:
            async with asyncio.timeout(timeout_sec):
                await self._connected.wait()
        except TimeoutError:
            why = self._failure or "it does not answer"
            raise SandboxStartError(f"Harbor's server at {self._relay.url} can't be reached: {why}") from None

    def mark_undelivered(self) -> None:
        """Record that an answer may not have reached the agent."""
        self._session.mark_undelivered(None)

    async def _connect(self, client: aiohttp.ClientSession) -> None:
        async with client.ws_connect(
            f"{self._relay.url}/connect",
            params={"session_id": self._relay.session_id},
            headers=self._relay.headers,
            heartbeat=_HEARTBEAT_SEC,
            max_msg_size=_MAX_FRAME_BYTES,
        ) as socket:
            self.reconnects += self._connected.is_set()
            self._connected.set()
            self._reached.add(self._server)
            await _Connection(self, socket, client).serve()
        # The last answer may not have arrived. If the agent makes no further request, it has lost its policy.
        self.mark_undelivered()
        logger.info("the connection of session %s to %s was lost", self._session.name, self._relay.url)


@asynccontextmanager
async def relayed(gateway: Gateway, session: Session, relay: RelayAddress) -> AsyncGenerator[RelayLink]:
    """Answer the requests of a relay's session with a session of the gateway while this context is open.

    Args:
        gateway: The open gateway of the session.
        session: The session.
        relay: The relay's address.

    Raises:
        UsageError: The server refuses connections with these settings. The context's body is then cancelled.
    """
    async with gateway.private_listener(session) as address:
        link = RelayLink(session, address, relay)
        async with task_group() as group:
            running = group.create_task(link.run(), name="relay")
            try:
                yield link
            finally:
                running.cancel()


class _Connection:
    """One WebSocket, and the answers to the requests that it brought."""

    def __init__(self, link: RelayLink, socket: aiohttp.ClientWebSocketResponse, client: aiohttp.ClientSession) -> None:
        self._link, self._socket, self._client = link, socket, client
        self._answering: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Answer requests until the connection is lost, then cancel unfinished answers."""
        try:
            async for message in self._socket:
                self._take(json.loads(message.data))
        except (TypeError, ValueError, ConnectionError) as exc:
            logger.warning("reconnecting to Harbor's relay: %s", exc)
        finally:
            tasks = list(self._answering.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _take(self, frame: Any) -> None:
        match frame:
            case {"type": "request", "request_id": str() as number}:
                task = self._answering[number] = asyncio.create_task(self._answer(number, frame))
                task.add_done_callback(lambda _: self._answering.pop(number, None))
            case {"type": "cancel", "request_id": str() as number}:
                if (task := self._answering.get(number)) is not None:
                    task.cancel()
                else:  # the relay had not passed the whole answer on
                    self._link.mark_undelivered()
            case _:
                raise ValueError("a frame is neither a request nor a cancellation")

    async def _answer(self, number: str, frame: Mapping[str, Any]) -> None:
        try:
            replies = await self._replies(frame)
        except (aiohttp.ClientError, OSError, KeyError, ValueError) as exc:
            logger.warning("a request of Harbor's relay can't be answered: %s", exc)
            replies = [{"type": "error", "code": "bad_gateway", "message": "the request could not be answered"}]
        with contextlib.suppress(ConnectionError):  # lost: `serve` ends, too
            for reply in replies:
                await self._socket.send_json({**reply, "request_id": number})

    async def _replies(self, frame: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._link.rollout_id not in (None, frame["rollout_id"]):
            return [{"type": "error", "code": "unknown_rollout", "message": "nobody here plays this rollout"}]
        request = self._client.request(
            frame["method"],
            self._link.base_url + frame["target"],
            headers=[(name, value) for name, value in frame["headers"] if name.lower() in _PASSED_ON],
            data=io.BytesIO(base64.b64decode(frame["body_b64"], validate=True)),
            skip_auto_headers=("Content-Type",),
            allow_redirects=False,
        )
        async with request as response:
            body = await response.read()
        start = {"status": response.status, "headers": [("content-type", response.headers.get("Content-Type", ""))]}
        return [{"type": "response_start", **start}, *_chunks(body), {"type": "response_end"}]


def _chunks(body: bytes) -> Iterator[dict[str, Any]]:
    for begin in range(0, len(body), _CHUNK_BYTES):
        part = body[begin : begin + _CHUNK_BYTES]
        yield {"type": "response_chunk", "body_b64": base64.b64encode(part).decode()}
