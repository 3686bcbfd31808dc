"""Waiting for events that are bound to come: the time limits, and polls where there is no event."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_SEC = 240
"""Nothing is measured by it: it only ends a test whose event never comes. A busy machine is sixty times slower."""


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, while the event loop goes on."""
    async with asyncio.timeout(PATIENCE_SEC):
        while not condition():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], *, limit_sec: float = PATIENCE_SEC) -> None:
    """Block until a condition holds."""
    deadline = time.monotonic() + limit_sec
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {limit_sec:g} s"
        time.sleep(0.02)
