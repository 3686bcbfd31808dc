"""An aiohttp application on the running loop, for doubles of engines and of providers."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

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
