"""A bound on a server's connections without a complete request, which cost a descriptor each and have no key yet."""

import asyncio
from collections.abc import Callable, Hashable

_MOST, _MOST_OF_OWNER = 256, 64
"""Most such connections of nobody known, and of one owner. One more closes the oldest of them, so that they can't block
other clients."""


class Unfinished[C: Hashable]:
    """The connections that wait for a request or for the rest of one.

    Args:
        abort: Closes a connection at once.
        timeout_sec: Longest wait of one of them, in seconds.
    """

    def __init__(self, abort: Callable[[C], None], *, timeout_sec: float) -> None:
        self._abort, self._timeout_sec = abort, timeout_sec
        self._owners: dict[C, Hashable] = {}
        self._timers: dict[Hashable, dict[C, asyncio.TimerHandle]] = {}
        """By owner, the oldest first."""

    def begin(self, connection: C, owner: Hashable = None) -> None:
        """Note that a connection waits; one that does so already is as old as before.

        Args:
            connection: The connection.
            owner: Whose it is, if it has shown that; each owner has a bound of its own.
        """
        if connection in self._owners:
            return
        self._owners[connection] = owner
        timers = self._timers.setdefault(owner, {})
        timers[connection] = asyncio.get_running_loop().call_later(self._timeout_sec, self._close, connection)
        if len(timers) > (_MOST if owner is None else _MOST_OF_OWNER):
            self._close(next(iter(timers)))

    def finish(self, connection: C) -> None:
        """Note that a connection has its request, or is closed. Idempotent."""
        if connection not in self._owners:
            return
        timers = self._timers[owner := self._owners.pop(connection)]
        timers.pop(connection).cancel()
        if not timers:
            del self._timers[owner]

    def _close(self, connection: C) -> None:
        self.finish(connection)
        self._abort(connection)
