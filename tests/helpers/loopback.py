"""Servers on loopback: an application on the running loop, for doubles of engines and providers; ports for programs."""

import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web


@asynccontextmanager
async def on_loopback(app: web.Application, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """Serve an application, by default on a free port; yield its address."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def reserved_port() -> Generator[int]:
    """Yield a free port of loopback for a program that gets its port as an argument and starts later.

    The port stays bound while this context is open. Linux then gives it to nobody who asks for any port, and lets the
    program listen on it, as servers allow the reuse of addresses.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
