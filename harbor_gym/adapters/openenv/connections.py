"""Limits on the duration and number of the server's connections without a complete request."""

import asyncio
from typing import Any, override

from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_UNFINISHED = 256
"""Most connections without a complete request. One more closes the oldest, so that they can't block other clients."""


def bounded_protocol(timeout_sec: float) -> type[asyncio.Protocol]:
    """Return a class for uvicorn's connections that limits the time for a request's headers, as uvicorn does not.

    The guard limits the time for a body, because only the guard knows whether the request has a token.

    Args:
        timeout_sec: Longest wait for a request's headers, and for the rest of a body that is not read.
    """
    unfinished: dict[Any, asyncio.TimerHandle] = {}
    """The timer of each connection without a complete request, the oldest first."""

    def close(connection: H11Protocol) -> None:
        finish(connection)
        connection.transport.abort()

    def begin(connection: H11Protocol) -> None:
        if connection in unfinished or connection.transport.is_closing():
            return
        unfinished[connection] = connection.loop.call_later(timeout_sec, close, connection)
        if len(unfinished) > _MAX_UNFINISHED:
            close(next(iter(unfinished)))

    def finish(connection: H11Protocol) -> None:
        if (timer := unfinished.pop(connection, None)) is not None:
            timer.cancel()

    class BoundedProtocol(H11Protocol):
        @override
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            begin(self)

        @override
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_served = self.cycle and not self.cycle.response_complete
            is_websocket = self.transport.get_protocol() is not self
            (finish if is_served or is_websocket else begin)(self)

        @override
        def connection_lost(self, exc: Exception | None) -> None:
            finish(self)
            super().connection_lost(exc)

    return BoundedProtocol
