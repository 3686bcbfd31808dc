"""The gateway: an HTTP server in this process, and the sessions that it serves."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from aiohttp import web

from harbor_gym._runtime.unfinished import Unfinished
from harbor_gym.errors import UsageError
from harbor_gym.gateway.codec import ConversationCodec, as_conversation_codec
from harbor_gym.gateway.config import GatewayConfig
from harbor_gym.gateway.endpoints import Endpoints, FindOwner, key_digest
from harbor_gym.gateway.group import SessionGroup
from harbor_gym.gateway.limits import SessionLimits
from harbor_gym.gateway.session import Session
from harbor_gym.types import ChatCodec, EndReason, Sampler

_SHUTDOWN_SEC = 5.0
"""How long a closing server waits for connections that are being answered."""

_LINGERING_SEC = 5.0
"""How long the rest of a refused body is read and dropped, so that its client can read the refusal."""


class Gateway:
    """A model provider's endpoint for agents, answered by any sampler and recorded token for token.

    Serves chat completions, responses and messages on the running event loop while it is open::

        async with Gateway(sampler, codec, model="policy") as gateway:
            session = gateway.open_session(limits=SessionLimits(max_turns=20))
            ...  # run an agent on session.base_url + "/v1"
            rows = session.trained_segments

    Args:
        sampler: Samples every answer. Sampling parameters of requests (temperature, seed, token limits) have no effect:
            trained tokens must come from the policy as the trainer configures it. Other parameters are honoured or
            refused.
        codec: Writes conversations as tokens. A :class:`ConversationCodec` renders tools itself; for a plain
            :class:`ChatCodec` they are rendered as text.
        model: The policy's model name. Requests for another one are recorded as side calls; None takes every name for
            the policy's.
        config: The address to listen on, and limits on requests.
    """

    def __init__(
        self,
        sampler: Sampler,
        codec: ChatCodec | ConversationCodec,
        *,
        model: str | None = None,
        config: GatewayConfig | None = None,
    ) -> None:
        self.model = model
        self.config = config or GatewayConfig()
        self._sampler, self._codec = sampler, as_conversation_codec(codec)
        self._by_key: dict[bytes, Session | SessionGroup] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            UsageError: The gateway is open already, or can't listen on its address.
        """
        if self._runner is not None:
            raise UsageError("this gateway is open already")
        self._runner = await _listen(self._by_key.get, self.config)
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every session, then every connection."""
        await self._close()

    @property
    def sampler(self) -> Sampler:
        """The sampler of sessions that have none of their own."""
        return self._sampler

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on.

        Raises:
            UsageError: The gateway is not open.
        """
        if self._runner is None:
            raise UsageError("this gateway is not open: use `async with Gateway(...) as gateway`")
        return self.config.host, self._port

    @property
    def url(self) -> str:
        """The server's URL, without a key.

        Raises:
            UsageError: The gateway is not open.
        """
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def open_session(
        self,
        *,
        name: str = "",
        limits: SessionLimits | None = None,
        on_limit: Callable[[EndReason], object] | None = None,
        sampler: Sampler | None = None,
    ) -> Session:
        """Open a session for one episode.

        Args:
            name: For logs; no secret.
            limits: The episode's budgets.
            on_limit: Called once, on the event loop, when a budget runs out, to end the agent. It must not block.
            sampler: Samples this session's answers instead of the gateway's sampler.

        Raises:
            UsageError: The gateway is not open.
        """
        session = self._new_session(name, limits, on_limit, sampler)
        self._publish(session)
        return session

    def open_group(
        self, *, limits: SessionLimits | None = None, on_limit: Callable[[str, EndReason], object] | None = None
    ) -> SessionGroup:
        """Open a group of sessions behind one key.

        Args:
            limits: The budgets of each session.
            on_limit: Called with the session's name and the reason when one of its budgets runs out.

        Raises:
            UsageError: The gateway is not open.
        """

        def open_session(name: str) -> Session:
            notify = None if on_limit is None else functools.partial(on_limit, name)
            return self._new_session(name, limits, notify, None)

        group = SessionGroup(open_session, self.config.max_group_sessions)
        self._publish(group)
        return group

    def close_session(self, session: Session | SessionGroup) -> None:
        """Refuse the session's key from now on, and cancel its running samples. Idempotent; the records stay."""
        self._by_key.pop(key_digest(session.key), None)
        for member in session.sessions.values() if isinstance(session, SessionGroup) else (session,):
            member.close()

    @asynccontextmanager
    async def private_listener(self, session: Session) -> AsyncGenerator[tuple[str, int]]:
        """Listen on a free loopback port that serves only ``session``, with its key as elsewhere.

        Raises:
            UsageError: The gateway or the session is closed.
        """
        own = key_digest(session.key)
        if self._by_key.get(own) is not session:
            raise UsageError("this session is not open in this gateway")
        config = self.config.model_copy(update={"host": "127.0.0.1", "port": 0})
        runner = await _listen(lambda key: self._by_key.get(key) if key == own else None, config)
        try:
            yield runner.addresses[0][:2]
        finally:
            await runner.cleanup()

    def _new_session(
        self,
        name: str,
        limits: SessionLimits | None,
        on_limit: Callable[[EndReason], object] | None,
        sampler: Sampler | None,
    ) -> Session:
        return Session(
            sampler or self._sampler, self._codec, model=self.model, limits=limits, name=name, on_limit=on_limit
        )

    def _publish(self, owner: Session | SessionGroup) -> None:
        owner.base_url = f"{self.config.public_url or self.url}/s/{owner.key}"
        self._by_key[key_digest(owner.key)] = owner

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        for owner in list(self._by_key.values()):
            self.close_session(owner)
        if runner is not None:
            await runner.cleanup()


async def _listen(find: FindOwner, config: GatewayConfig) -> web.AppRunner:
    """Start a server; its caller cleans it up.

    Raises:
        UsageError: It can't listen on its address.
    """
    endpoints = Endpoints(find, config)
    runner = web.AppRunner(
        endpoints.app(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=config.idle_timeout_sec,
        lingering_time=min(_LINGERING_SEC, config.body_timeout_sec),
        shutdown_timeout=_SHUTDOWN_SEC,
    )
    try:
        await runner.setup()
        assert runner.server is not None
        _watch(runner.server, endpoints.unfinished)
        await web.TCPSite(runner, config.host, config.port).start()
    except OSError as exc:
        await runner.cleanup()
        raise UsageError(f"can't listen on {config.host} port {config.port}: {exc}") from exc
    except BaseException:
        await runner.cleanup()
        raise
    return runner


def _watch(server: web.Server, unfinished: Unfinished[asyncio.BaseTransport]) -> None:
    """Count a server's connections from their beginning: aiohttp limits no first request's time, and no number."""
    made, lost = server.connection_made, server.connection_lost
    transports: dict[object, asyncio.BaseTransport] = {}

    def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        made(handler, transport)
        transports[handler] = transport
        unfinished.begin(transport)

    def connection_lost(handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        unfinished.finish(transports.pop(handler))
        lost(handler, exc)

    server.connection_made, server.connection_lost = connection_made, connection_lost
