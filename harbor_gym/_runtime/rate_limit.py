"""Limits on starts: a token bucket, and pauses that a provider requests."""

import asyncio
import random
import time
from typing import Protocol

_JITTER = 0.25
"""Waits are lengthened by up to this share, so that processes that were refused together don't retry together."""


class TokenBucket:
    """Let starts through at a bounded rate. For one caller at a time.

    Args:
        per_sec: Starts per second in the long run.
        burst: Starts that are allowed at once after an idle time.
    """

    def __init__(self, *, per_sec: float, burst: int) -> None:
        self._per_sec = per_sec
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = time.monotonic()
        self._not_before = 0.0

    async def acquire(self) -> None:
        """Wait until a start is allowed, and count it. A cancelled wait counts nothing."""
        while (delay_sec := self._delay_sec()) > 0:  # noqa: ASYNC110 - back_off may be called while it sleeps
            await asyncio.sleep(_jittered(delay_sec))
        self._tokens -= 1

    def back_off(self, seconds: float) -> None:
        """Allow no start for at least ``seconds``. Never shortens an earlier pause."""
        self._not_before = max(self._not_before, time.monotonic() + _jittered(seconds))

    def _delay_sec(self) -> float:
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_sec)
        self._filled_at = now
        return max((1 - self._tokens) / self._per_sec, self._not_before - now)


class StartGate(Protocol):
    """A gate for starts that shares its limit with other processes."""

    async def acquire(self) -> None:
        """Wait until a start is allowed, and count it."""
        ...

    def back_off(self, seconds: float) -> None:
        """Allow no start for at least ``seconds``. Returns at once."""
        ...


_gate: StartGate | None = None


def set_start_gate(gate: StartGate | None) -> None:
    """Make every start of a sandbox in this process wait for ``gate``; None removes it."""
    global _gate
    _gate = gate


async def pass_start_gate() -> None:
    """Wait until this process may start one more sandbox."""
    if _gate is not None:
        await _gate.acquire()


def back_off_starts(seconds: float) -> None:
    """Report to the gate that a provider asks to wait ``seconds``."""
    if _gate is not None:
        _gate.back_off(seconds)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1, 1 + _JITTER)
