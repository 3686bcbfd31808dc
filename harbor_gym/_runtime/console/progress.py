"""Progress reports of long work."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

type ShowBar = Callable[[str, int, int | None, str], None]
"""Called as ``bar(phase, done, total, detail)``. The phase is over when ``done`` is ``total``; where the total is not
known it is None, and ``done`` are seconds."""


def show_no_bar(phase: str, done: int, total: int | None, detail: str) -> None:
    """Show nothing."""


@contextlib.asynccontextmanager
async def ticking(bar: ShowBar, phase: str, detail: str = "") -> AsyncGenerator[None]:
    """Show every second how long the block has been running."""
    begun = time.monotonic()

    async def tick() -> None:
        while True:
            bar(phase, round(time.monotonic() - begun), None, detail)
            await asyncio.sleep(1)

    ticks = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticks.cancel()
        await asyncio.wait((ticks,))
