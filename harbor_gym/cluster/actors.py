"""The actors on the nodes: workers that run calls, one agent per node, one limiter for the cluster.

These are plain classes; :mod:`harbor_gym.cluster.executor` makes actors of them.
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
    """Limits the starts of sandboxes in the whole cluster to one rate.

    Args:
        per_sec: Starts per second in the long run.
        burst: Starts at once after an idle time.
    """

    def __init__(self, per_sec: float, burst: int) -> None:
        self._bucket = TokenBucket(per_sec=per_sec, burst=burst)
        self._lock = asyncio.Lock()
        self._granted = 0

    async def acquire(self) -> None:
        """Wait until one more sandbox may start."""
        async with self._lock:
            await self._bucket.acquire()
            self._granted += 1

    async def back_off(self, seconds: float) -> None:
        """Let no sandbox of the cluster start for ``seconds``."""
        self._bucket.back_off(seconds)

    async def granted(self) -> int:
        """Return how many starts were allowed so far."""
        return self._granted


class _RemoteGate:
    """The start gate of this process's episodes, which calls the limiter."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    async def acquire(self) -> None:
        await self._limiter.acquire.remote()

    def back_off(self, seconds: float) -> None:
        self._limiter.back_off.remote(seconds)


class Worker:
    """Runs one call at a time, in its own process.

    Args:
        limiter: The cluster's limiter; None sets no limit.
    """

    def __init__(self, limiter: Any) -> None:
        if limiter is not None:
            set_start_gate(_RemoteGate(limiter))

    def place(self) -> tuple[str, int]:
        """Return the ids of the node and of the process on it."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def call(self, call: PackedCall, tasks: Mapping[str, list[Any]]) -> PackedResult:
        """Run a call.

        Args:
            call: The call.
            tasks: Digest → a list with the reference of the task's archive. The list keeps Ray from fetching it.

        Raises:
            InterruptedError: The node's agent interrupted the call; its sandboxes are closed.
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
        """Close the warm pools that calls left in this process."""
        from harbor_gym.pool import close_portal_pools

        close_portal_pools()


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Unblock SIGINT, which Ray blocks in its workers, during the block: asyncio.run then cancels its main task."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class NodeAgent:
    """Interrupts workers of its node, and removes the sandboxes of dead ones."""

    def __init__(self) -> None:
        self.reap()

    def interrupt(self, pid: int) -> None:
        """Send SIGINT to a worker; it closes its sandboxes and returns."""
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            return

    def reap(self) -> list[str]:
        """Remove the sandboxes of dead processes on this node; return a line for each failure."""
        from harbor_gym.sandboxes.reaper import find_leftovers, remove

        return remove(find_leftovers())
