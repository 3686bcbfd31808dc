"""Limits on the duration and number of the server's connections without a complete request."""

import asyncio
from typing import Any, override

from uvicorn.protocols.http.h11_impl import H11Protocol

from harbor_gym._runtime.unfinished import Unfinished


def bounded_protocol(timeout_sec: float) -> type[asyncio.Protocol]:
    """Return a class for uvicorn's connections that limits the time for a request's headers, as uvicorn does not.

    The guard limits the time for a body, because only the guard knows whether the request has a token.

    Args:
        timeout_sec: Longest wait for a request's headers, and for the rest of a body that is not read.
    """
    unfinished = Unfinished[Any](lambda connection: connection.transport.abort(), timeout_sec=timeout_sec)

    class BoundedProtocol(H11Protocol):
        @override
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            unfinished.begin(self)

        @override
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_served = self.cycle and not self.cycle.response_complete
            is_websocket = self.transport.get_protocol() is not self
            if is_served or is_websocket:
                unfinished.finish(self)
            elif not self.transport.is_closing():
                unfinished.begin(self)

        @override
        def connection_lost(self, exc: Exception | None) -> None:
            unfinished.finish(self)
            super().connection_lost(exc)

    return BoundedProtocol
