"""The actors on the nodes: workers that play calls, one agent a node, one limiter for the cluster.

Plain classes: :mod:`harbor_gym.cluster.executor` makes actors of them.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Generator, Mapping
from typing import Any

from harbor_gym._runtime.rate_limit import TokenBucket, set_start_gate
from harbor_gym.cluster.calls import PackedCall, PackedResult, run_call
from harbor_gym.cluster.task_store import PackedTask, has_task, unpack_task


class Limiter:
    """Lets the cluster's sandboxes start at one common rate.

    Args:
        per_sec: Starts per second in the long run.
        burst: Starts at once after a quiet time.
    """

    def __init__(self, per_sec: float, burst: int) -> None:
        self._bucket = TokenBucket(per_sec=per_sec, burst=burst)
        self._lock = asyncio.Lock()
        self._granted = 0

    async def acquire(self) -> None:
        """Wait until one more sandbox may start anywhere."""
        async with self._lock:
            await self._bucket.acquire()
            self._granted += 1

    async def back_off(self, seconds: float) -> None:
        """Let no sandbox start anywhere for so long."""
        self._bucket.back_off(seconds)

    async def granted(self) -> int:
        """Return how many starts were allowed so far."""
        return self._granted


class _RemoteGate:
    """The limiter, as this process's episodes ask for it."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    async def acquire(self) -> None:
        await self._limiter.acquire.remote()

    def back_off(self, seconds: float) -> None:
        self._limiter.back_off.remote(seconds)


class Worker:
    """Plays one call at a time, in a process of its own.

    Args:
        limiter: The cluster's; None limits nothing.
    """

    def __init__(self, limiter: Any) -> None:
        if limiter is not None:
            set_start_gate(_RemoteGate(limiter))

    def pid(self) -> int:
        """Return the process's id on its node."""
        return os.getpid()

    def call(self, call: PackedCall, tasks: Mapping[str, list[Any]]) -> PackedResult:
        """Play a call.

        Args:
            call: What to play.
            tasks: References to the archives of its tasks, each in a list of its own so that Ray does not fetch it.

        Raises:
            InterruptedError: The agent interrupted it; its sandboxes are closed.
        """
        import ray

        for digest in call.digests:
            if not has_task(digest):
                (reference,) = tasks[digest]
                unpack_task(PackedTask(digest, ray.get(reference)))
        try:
            with _interruptible():
                return run_call(call)
        except KeyboardInterrupt:
            raise InterruptedError("the run ended while this call was played") from None

    def close(self) -> None:
        """Close the pools that calls left in this process."""
        from harbor_gym.pool import close_portal_pools

        close_portal_pools()


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Let SIGINT, which Ray blocks in its workers, reach the block: asyncio.run then cancels its main task."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class NodeAgent:
    """Interrupts workers of its node, and removes what dead ones left."""

    def __init__(self) -> None:
        self.reap()

    def interrupt(self, pid: int) -> None:
        """Send SIGINT to a worker; it closes its sandboxes and returns."""
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            return

    def reap(self) -> list[str]:
        """Remove what dead processes left on this node; return a line for each thing that could not be removed."""
        from harbor_gym.sandboxes.reaper import find_leftovers, remove

        return remove(find_leftovers())
