"""The HTTP side: paths, keys, limits on clients, and errors in the format of the path's wire."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from harbor_gym._runtime.unfinished import Unfinished
from harbor_gym.errors import SamplerError
from harbor_gym.gateway.config import GatewayConfig
from harbor_gym.gateway.errors import ErrorKind, InvalidRequestError, LastAnswersError, RequestError
from harbor_gym.gateway.group import SessionGroup
from harbor_gym.gateway.session import Session
from harbor_gym.gateway.wires import Body, ChatCompletionsWire, MessagesWire, ResponsesWire, Wire

_SESSION_HEADER = "X-Session-ID"
_SESSION = web.RequestKey("session", Session)
"""Where a request keeps its session."""

_MAX_SESSION_NAME = 256
_CLIENT_GONE = 499

_UNANSWERED = (ErrorKind.TIMEOUT, ErrorKind.TOO_MANY_REQUESTS)
"""Refusals that neither the policy nor a budget caused."""

type _Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
type _Server = Callable[[web.Request, Wire], Awaitable[web.StreamResponse]]

type FindOwner = Callable[[bytes], Session | SessionGroup | None]
"""Returns the owner of a key, by the key's digest."""

logger = logging.getLogger(__name__)


def key_digest(key: str) -> bytes:
    """Return the digest by which a key is looked up, so that the time of a comparison reveals nothing of the key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


class Endpoints:
    """The gateway's paths.

    Args:
        find: Returns the owner of a key's digest.
        config: Limits on clients.
    """

    def __init__(self, find: FindOwner, config: GatewayConfig) -> None:
        self._find, self._config = find, config
        self.unfinished = Unfinished[asyncio.BaseTransport](_abort, timeout_sec=config.idle_timeout_sec)
        """The connections that wait for a request; those that had one with a key are the session's."""

    def app(self) -> web.Application:
        """Return an application that serves every path, at the root and below a session's key."""
        app = web.Application(client_max_size=self._config.max_body_bytes, middlewares=[self._counted])
        router = app.router
        chat, responses, messages = ChatCompletionsWire(), ResponsesWire(), MessagesWire()
        for key in ("", "/s/{key}"):
            for version in ("", "/v1"):  # clients disagree on whether a base URL ends in /v1
                root = key + version
                router.add_post(f"{root}/chat/completions", _guarded(chat, self._answer))
                router.add_post(f"{root}/responses", _guarded(responses, self._answer))
                router.add_get(f"{root}/responses", _guarded(responses, self._refuse_websocket))
                router.add_post(f"{root}/messages", _guarded(messages, self._answer))
                router.add_post(f"{root}/messages/count_tokens", _guarded(messages, self._count_tokens))
                router.add_get(f"{root}/models", _guarded(chat, self._models))
                for path in {root, f"{root}/"} - {""}:
                    router.add_get(path, _alive)  # and HEAD
        router.add_route("*", "/{path:.*}", _guarded(chat, _unknown))
        return app

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request of a connection that waits for one before and after."""
        if (transport := request.transport) is None:
            return await handler(request)
        self.unfinished.finish(transport)
        try:
            return await handler(request)
        finally:
            if not transport.is_closing():
                self.unfinished.begin(transport, request.get(_SESSION))

    async def _answer(self, request: web.Request, wire: Wire) -> web.StreamResponse:
        session, call = self._session(request), None
        losses = session.losses
        try:
            with session.admitted():
                body = await self._body(request)
                asked = wire.read(body)
                answer, call = await session.answer(asked)
            if asked.stream:
                parts = (event.encode() for event in wire.events(body, answer))
                sent = await self._send(request, "text/event-stream", parts)
            else:
                whole = json.dumps(wire.plain(body, answer)).encode()
                sent = await self._send(request, "application/json", [whole], length=len(whole))
        except RequestError as exc:
            session.refused(exc.kind)
            if exc.kind in _UNANSWERED and not isinstance(exc, LastAnswersError):
                session.mark_undelivered(call, by_client=True)
            raise
        except SamplerError:
            raise  # the session has recorded it
        except (Exception, asyncio.CancelledError) as exc:
            # A handler is cancelled if its client is gone, or cuts its body, or does not read.
            is_gone = isinstance(exc, ConnectionError | TimeoutError | asyncio.CancelledError)
            session.mark_undelivered(call, by_client=is_gone)
            raise
        session.mark_delivered(losses)
        return sent

    async def _count_tokens(self, request: web.Request, wire: Wire) -> web.StreamResponse:
        session = self._session(request)
        with session.admitted():
            asked = wire.read(await self._body(request))
            return web.json_response({"input_tokens": await session.count_tokens(asked)})

    async def _models(self, request: web.Request, _: Wire) -> web.StreamResponse:
        session = self._session(request)
        model: dict[str, Any] = {"id": session.model or "policy", "object": "model", "owned_by": "gateway"}
        if session.limits.max_context_tokens is not None:
            model["max_model_len"] = session.limits.max_context_tokens
        return web.json_response({"object": "list", "data": [{"created": 0, **model}]})

    async def _refuse_websocket(self, request: web.Request, _: Wire) -> web.StreamResponse:
        self._session(request)
        raise RequestError(ErrorKind.NO_WEBSOCKET, "websockets are not served here: POST the request")

    def _session(self, request: web.Request) -> Session:
        """Return the session whose key the request carries.

        Raises:
            RequestError: The key or the group's header is missing or wrong, or the group is full.
        """
        owner = self._find(key_digest(_key(request)))
        if owner is None:
            raise RequestError(ErrorKind.UNAUTHORIZED, "no session has this key")
        if not isinstance(owner, Session):
            name = request.headers.get(_SESSION_HEADER, "")
            if not 0 < len(name) <= _MAX_SESSION_NAME:
                raise RequestError(ErrorKind.UNAUTHORIZED, f"this key needs the header {_SESSION_HEADER}")
            owner = owner.session(name)
        request[_SESSION] = owner
        return owner

    async def _body(self, request: web.Request) -> Body:
        """Return the request's JSON object.

        Raises:
            RequestError: The body is too large, too slow, or not a JSON object.
        """
        try:
            async with asyncio.timeout(self._config.body_timeout_sec):
                raw = await request.read()
        except TimeoutError:
            limit = self._config.body_timeout_sec
            raise RequestError(ErrorKind.TIMEOUT, f"the body did not arrive within {limit:g} seconds") from None
        except web.HTTPRequestEntityTooLarge:
            limit = self._config.max_body_bytes
            raise RequestError(ErrorKind.TOO_LARGE, f"the body is larger than {limit} bytes") from None
        except web.RequestPayloadError as exc:
            raise InvalidRequestError(f"the body can't be read: {exc}") from None
        try:
            body = json.loads(raw)
        except ValueError as exc:
            raise InvalidRequestError(f"the body is not JSON: {exc}") from None
        except RecursionError:
            raise InvalidRequestError("the body is nested too deeply") from None
        if not isinstance(body, dict):
            raise InvalidRequestError("the body must be a JSON object")
        return cast("Body", body)

    async def _send(
        self, request: web.Request, content_type: str, parts: Iterable[bytes], *, length: int | None = None
    ) -> web.StreamResponse:
        """Send an answer here instead of returning it, so that a disconnected client is noticed.

        Args:
            request: The request.
            content_type: The answer's media type.
            parts: The answer's bytes.
            length: Their total number; None sends them in chunks.
        """
        response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
        response.content_length = length
        if request.transport is not None and request.transport.is_closing():
            raise ConnectionResetError("the client is gone")
        async with asyncio.timeout(self._config.write_timeout_sec):
            await response.prepare(request)
            for part in parts:
                await response.write(part)
            await response.write_eof()
        return response


def _abort(transport: asyncio.BaseTransport) -> None:
    cast("asyncio.Transport", transport).abort()


def _guarded(wire: Wire, serve: _Server) -> _Handler:
    """Return a handler that reports errors in the wire's format."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await serve(request, wire)
        except RequestError as exc:
            error = exc
        except SamplerError:
            # The engine's message may contain hosts and paths: it stays in the session's record.
            error = RequestError(ErrorKind.SAMPLER_FAILED, "the policy could not be sampled")
        except (ConnectionError, TimeoutError):
            return _dropped(request)
        except Exception:  # The boundary to the client: a bug here or in a codec gets an answer too.
            logger.exception("a request could not be answered")
            error = RequestError(ErrorKind.INTERNAL, "the request could not be answered")
        status, body = wire.error(error)
        return web.json_response(body, status=status)

    return handle


def _dropped(request: web.Request) -> web.StreamResponse:
    """Close the connection of a client that is gone or does not read; aiohttp still requires a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=_CLIENT_GONE)


def _key(request: web.Request) -> str:
    """Return the key that a request carries in its path, or else in a header."""
    if key := request.match_info.get("key"):
        return key
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


async def _alive(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


async def _unknown(request: web.Request, _: Wire) -> web.StreamResponse:
    raise RequestError(ErrorKind.NOT_FOUND, f"nothing is served at {request.method} {_shown_path(request)}")


def _shown_path(request: web.Request) -> str:
    """Return the path without a key."""
    parts = request.path.split("/")
    if len(parts) > 2 and parts[1] == "s":
        parts[2] = "..."
    return "/".join(parts)[:200]
