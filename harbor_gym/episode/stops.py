"""How many sandboxes of an event loop stop at once, so that each has its time to stop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

AT_ONCE = 64
"""Sandboxes that stop at the same time. Of 2,000 closed at once on two processors, each took longer than a minute."""


class _Stops:
    """The stops of one event loop."""

    def __init__(self) -> None:
        self.running = 0
        self.ended = 0
        """Sandboxes that did stop."""

        self.change = asyncio.Condition()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Stops] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def turn_to_stop(patience_sec: float) -> AsyncGenerator[None]:
    """Run the block, which stops a sandbox, when fewer than :data:`AT_ONCE` others stop in this event loop.

    Args:
        patience_sec: The block also runs if no sandbox stopped for this long, in seconds: a daemon that does not
            answer holds up nobody twice.
    """
    stops = _of_loop.setdefault(asyncio.get_running_loop(), _Stops())
    async with stops.change:
        while stops.running >= AT_ONCE:
            ended = stops.ended
            try:
                await asyncio.wait_for(stops.change.wait(), patience_sec)
            except TimeoutError:
                if stops.ended == ended:
                    break
        stops.running += 1
    try:
        yield
        stops.ended += 1
    finally:
        stops.running -= 1
        async with stops.change:
            stops.change.notify()
