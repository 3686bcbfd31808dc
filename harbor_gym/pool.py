"""Warm pools: sandboxes that are started before an episode needs them."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import time
import weakref
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from harbor_gym._runtime.portal import current_portal, get_portal, refuse_to_copy
from harbor_gym._runtime.rate_limit import TokenBucket
from harbor_gym._runtime.shielded import shielded
from harbor_gym.config import PoolLimits, TerminalEnvConfig
from harbor_gym.config.snapshot import NO_START
from harbor_gym.episode.prepared import PreparedEpisode
from harbor_gym.errors import (
    HarborGymError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SandboxThrottledError,
    TerminalError,
    UsageError,
)

_logger = logging.getLogger(__name__)

_LOOK_TIMEOUT_SEC = 15.0
"""How long a pooled sandbox may take to show its screen before it counts as dead."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One prepared episode. The lessee owns it and must close it."""

    prepared: PreparedEpisode
    hit: bool
    """Whether it was ready at the time of the request."""

    wait_sec: float
    """Seconds from the request to the lease, including the check that the sandbox is alive."""


@dataclass(slots=True)
class PoolCounts:
    """A pool's counts so far."""

    hits: int = 0
    misses: int = 0
    wait_sec: float = 0.0
    """Sum of all leases' waits, in seconds."""

    created: int = 0
    failed: int = 0
    dead: int = 0
    """Sandboxes that ended in the pool; they are never leased."""

    discarded: int = 0
    stop_failures: int = 0
    """Discarded sandboxes that did not stop in time."""


@dataclass(slots=True)
class _Waiter:
    future: asyncio.Future[PreparedEpisode]
    failures_before: int


class WarmPool:
    """Keep episodes of one task ready, with the sandbox running and the terminal open. Any sandbox type will do.

    The pool fills in the background, from the first lease (or ``start``) on, and refills after every lease. It belongs
    to one event loop; ``close``, or the end of that loop, discards the sandboxes that are not leased.

    Args:
        config: The task and the sandbox. Only ``recording_path`` and the fields of its start may differ between
            lessees.
        size: Sandboxes to keep ready.
        limits: How fast to start them, and when to give up.

    Example::

        async with WarmPool(config, size=8) as pool:
            env = AsyncTerminalGymEnv(config, pool=pool)
    """

    __getstate__ = refuse_to_copy

    def __init__(self, config: TerminalEnvConfig, *, size: int, limits: PoolLimits | None = None) -> None:
        if size < 1:
            raise UsageError(f"a warm pool's size must be at least 1, got {size}")
        self.config = _of_sandbox(config)
        self.size = size
        self.counts = PoolCounts()
        self._limits = limits or PoolLimits()
        self._token_bucket = TokenBucket(per_sec=self._limits.starts_per_sec, burst=self._limits.max_starts_at_once)
        self._ready: deque[PreparedEpisode] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._starting = 0
        self._checked_out = 0
        self._failures = 0
        """Failed starts so far; concurrent ones count once."""

        self._failures_in_a_row = 0
        self._failed_at = 0.0
        self._is_refilling = True
        self._is_closed = False
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks = asyncio.TaskGroup()

    def __repr__(self) -> str:
        config, ready = self.config, len(self._ready)
        is_closed = ", closed" if self._is_closed else ""
        return f"<WarmPool {config.task_dir.name} on {config.sandbox}: {ready} of {self.size} ready{is_closed}>"

    # -- for the lessee ------------------------------------------------------------------------------------------

    def require_fit(self, config: TerminalEnvConfig) -> None:
        """Raise unless this pool's sandboxes fit ``config``.

        Raises:
            UsageError: A field other than ``recording_path`` and those of its start differs.
        """
        wanted = _of_sandbox(config)
        if wanted != self.config:
            pairs = zip(wanted, self.config, strict=True)
            differing = [name for (name, ours), (_, theirs) in pairs if ours != theirs]
            raise UsageError(f"the warm pool was made for another configuration: {', '.join(differing)} differ")

    async def lease(self) -> Lease:
        """Return a prepared episode whose sandbox was just checked to be alive. Callers are served in order.

        Raises:
            HarborGymError: As :meth:`harbor_gym.AsyncTerminalGymEnv.reset`: at once if no retry can repair it, else
                after ``max_failures`` failed starts in a row.
            UsageError: The pool is closed, or belongs to another event loop.
        """
        self.start()
        started = time.monotonic()
        hit = bool(self._ready) and not self._waiters
        for _ in range(self.size + self._limits.max_failures):
            prepared = await self._take()
            try:
                is_alive = await self._is_alive(prepared)
            finally:
                self._checked_out -= 1
            if is_alive:
                break
            hit = False
        else:
            raise SandboxLostError(
                f"every sandbox of {self.config.task_dir.name} ended before its first screen was read"
            )
        wait_sec = time.monotonic() - started
        self.counts.wait_sec += wait_sec
        self.counts.hits += hit
        self.counts.misses += not hit
        self._wake.set()
        return Lease(prepared, hit, wait_sec)

    def start(self) -> None:
        """Start filling the pool. Idempotent; the first lease does it too.

        Raises:
            UsageError: The pool is closed, or belongs to another event loop.
        """
        if self._keeper is None and not self._is_closed:
            # A fresh context: later starts must not inherit the context variables of the first caller.
            keeping = self._run()
            self._keeper = asyncio.create_task(keeping, name="harbor-gym-pool", context=contextvars.Context())
            self._wake.set()
        self._require_open()

    def stop_refilling(self) -> None:
        """Start no more sandboxes: ready ones are still leased, and waiting callers are still served."""
        self._is_refilling = False

    def refill_to(self, size: int) -> None:
        """Keep ``size`` sandboxes ready from now on, also after ``stop_refilling``. Surplus ones are still leased."""
        self.size = size
        self._is_refilling = True
        self._wake.set()

    @property
    def is_closed(self) -> bool:
        """Whether the pool refuses further leases."""
        return self._is_closed

    async def close(self) -> None:
        """Discard ready and starting sandboxes, and fail waiting callers. Idempotent; leases are not touched."""
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await shielded(asyncio.wait((self._keeper,)))
            if not self._keeper.cancelled():
                self._keeper.result()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def metrics(self) -> dict[str, float]:
        """Return the counts so far, named ``pool/…``.

        Every created sandbox is ready, leased or discarded; ``pool/leaked`` counts the others, and is 0 without a bug.
        """
        counts = self.counts
        leased = counts.hits + counts.misses
        leaked = (
            counts.created - leased - counts.discarded - len(self._ready) - self._checked_out + counts.stop_failures
        )
        return {
            "pool/hits": counts.hits,
            "pool/misses": counts.misses,
            "pool/wait_sec": counts.wait_sec,
            "pool/created": counts.created,
            "pool/failed": counts.failed,
            "pool/dead": counts.dead,
            "pool/ready": len(self._ready),
            "pool/starting": self._starting,
            "pool/leaked": leaked,
        }

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError("the warm pool is closed: make a new one")
        if self._keeper is not None and self._keeper.get_loop() is not asyncio.get_running_loop():
            raise UsageError("the warm pool belongs to another event loop: make one per loop")

    async def _take(self) -> PreparedEpisode:
        """Return the oldest ready episode, or queue for one."""
        if self._ready and not self._waiters:
            self._checked_out += 1
            return self._ready.popleft()
        self._require_open()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), self._failures)
        self._waiters.append(waiter)
        self._wake.set()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self._checked_out -= 1
                self._ready.appendleft(waiter.future.result())
                self._serve()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def _is_alive(self, prepared: PreparedEpisode) -> bool:
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_SEC):
                turn = await prepared.first_screen()
        except (TimeoutError, SandboxError, TerminalError) as exc:
            _logger.info("a sandbox of %s ended while it was kept ready: %s", self.config.task_dir.name, exc)
        except BaseException:
            await shielded(self._discard(prepared))
            raise
        else:
            if not turn.ended and not prepared.is_closed:
                return True
        self.counts.dead += 1
        await self._discard(prepared)
        return False

    # -- keeping it full -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            async with self._tasks:
                await self._keep()
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._is_closed = True
            self._fail_waiters(error)
            await shielded(self._discard_ready())

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._missing() > 0:
                await self._token_bucket.acquire()
                if self._missing() > 0:
                    self._starting += 1
                    self._tasks.create_task(self._start_one())

    def _missing(self) -> int:
        """Return how many sandboxes should be started now."""
        is_working = self._failures_in_a_row < self._limits.max_failures
        stock = self.size if is_working and self._is_refilling else 0
        wanted = stock + len(self._waiters) - len(self._ready) - self._starting
        return min(wanted, self._limits.max_starts_at_once - self._starting)

    async def _start_one(self) -> None:
        prepared, began = PreparedEpisode(self.config), time.monotonic()
        try:
            await prepared.prepare()
        except HarborGymError as exc:
            self.counts.failed += 1
            self._note_failure(exc, began)
            await self._stop(prepared)
        except BaseException:
            await shielded(self._stop(prepared))
            raise
        else:
            self.counts.created += 1
            self._failures_in_a_row = 0
            self._ready.append(prepared)
            self._serve()
        finally:
            self._starting -= 1
            self._wake.set()

    def _serve(self) -> None:
        while self._ready and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                self._checked_out += 1
                waiter.future.set_result(self._ready.popleft())

    def _note_failure(self, error: HarborGymError, began: float) -> None:
        _logger.info("a sandbox for the warm pool of %s did not start: %s", self.config.task_dir.name, error)
        if began >= self._failed_at:
            self._failed_at = time.monotonic()
            self._failures += 1
            self._failures_in_a_row += 1
        limits = self._limits
        pause = min(limits.backoff_sec * 2.0 ** (self._failures_in_a_row - 1), limits.max_backoff_sec)
        if isinstance(error, SandboxThrottledError):
            pause = max(pause, error.retry_after_sec or 0.0)
        self._token_bucket.back_off(pause)
        for waiter in list(self._waiters):
            failures = min(self._failures_in_a_row, self._failures - waiter.failures_before)
            if not error.is_infrastructure or failures >= limits.max_failures:
                self._waiters.remove(waiter)
                _fail(waiter, error)

    def _fail_waiters(self, error: BaseException | None) -> None:
        while self._waiters:
            if error is None or isinstance(error, asyncio.CancelledError):
                _fail(self._waiters.popleft(), UsageError("the warm pool was closed while a sandbox was waited for"))
            else:
                _fail(self._waiters.popleft(), SandboxStartError(f"the warm pool broke off: {error}"))

    async def _discard_ready(self) -> None:
        async with asyncio.TaskGroup() as group:
            while self._ready:
                group.create_task(self._discard(self._ready.popleft()))

    async def _discard(self, prepared: PreparedEpisode) -> None:
        self.counts.discarded += 1
        await self._stop(prepared)

    async def _stop(self, prepared: PreparedEpisode) -> None:
        try:
            await prepared.discard()
        except HarborGymError as exc:
            self.counts.stop_failures += 1
            _logger.warning("a sandbox that the warm pool kept did not stop: %s", exc)


def _of_sandbox(config: TerminalEnvConfig) -> TerminalEnvConfig:
    return config.model_copy(update={**NO_START, "copy_command": None, "recording_path": None})


def _fail(waiter: _Waiter, error: HarborGymError) -> None:
    if not waiter.future.done():
        # A copy: each lessee's traceback grows on its own.
        waiter.future.set_exception(copy.copy(error))


# -- one pool per event loop and configuration ---------------------------------------------------------------------

_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[WarmPool]] = weakref.WeakKeyDictionary()


def shared_pool(config: TerminalEnvConfig, *, size: int, limits: PoolLimits | None = None) -> WarmPool:
    """Return the running loop's pool for ``config``, started; made if there is none, enlarged if it is smaller.

    For callers that are pickled and so can't hold a pool. Close the pools with :func:`close_shared_pools`; those of the
    portal's loop are also closed at the interpreter's exit.
    """
    pools = _shared.setdefault(asyncio.get_running_loop(), [])
    pools[:] = [pool for pool in pools if not pool.is_closed]
    for pool in pools:
        if pool.config == _of_sandbox(config):
            pool.size = max(pool.size, size)
            return pool
    pool = WarmPool(config, size=size, limits=limits)
    pool.start()
    pools.append(pool)
    if (portal := current_portal()) is not None:
        portal.close_at_exit(pool)
    return pool


async def portal_pool(config: TerminalEnvConfig, *, size: int) -> WarmPool:
    """Return the pool for ``config`` on the portal's event loop, for callers whose own loops end before the pool.

    Use its leases on the portal's loop, as :class:`harbor_gym.wrappers.PortalEnv` does. The pool is closed at the
    interpreter's exit, or by :func:`close_portal_pools`.
    """

    async def find() -> WarmPool:
        return shared_pool(config, size=size)

    return await get_portal().run(find)


def close_portal_pools() -> None:
    """Close every pool of the portal. Blocks until their sandboxes have stopped."""
    get_portal().call(close_shared_pools)


async def close_shared_pools() -> None:
    """Close every shared pool of the running loop."""
    pools = _shared.pop(asyncio.get_running_loop(), [])
    async with asyncio.TaskGroup() as group:
        for pool in pools:
            group.create_task(pool.close())
