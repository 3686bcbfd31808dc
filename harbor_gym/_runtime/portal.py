"""The entrance to asyncio for synchronous callers: one event loop on one thread, shared by the whole process.

Harbor requires one loop per process. Scripts, threads, notebooks and callers with a loop of their own all use this one:
``call`` blocks, ``submit`` returns a future, ``run`` is awaited on the caller's own loop. Objects that they leave open
are closed when their owner is garbage-collected, and at the interpreter's exit at the latest: the exit closes or
cancels everything on the loop, and waits for it.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor  # exit hooks run backwards: its own must be registered before ours
from typing import Any, NoReturn, Protocol

from harbor_gym._runtime.errors import UsageError
from harbor_gym._runtime.shielded import shielded

type Closer = Callable[[], Coroutine[Any, Any, None]]


def refuse_to_copy(self: object) -> NoReturn:
    """Refuse to pickle or copy what holds sandboxes; the ``__getstate__`` of a class that does.

    Raises:
        UsageError: Always.
    """
    raise UsageError(
        f"a {type(self).__name__} holds sandboxes and can't be pickled or copied: make one where it is used "
        "(a TerminalEnvConfig can be pickled), or copy its running episode with fork"
    )


class Closeable(Protocol):
    """Something that can be closed."""

    async def close(self) -> None:
        """Close it. Idempotent."""
        ...


_WORKERS = 8
"""Threads behind asyncio.to_thread on the portal's loop."""

_EXIT_TIMEOUT_SEC = 90.0
"""Longer than an environment gives its sandbox to stop; after that the interpreter exits with what is left."""

logger = logging.getLogger(__name__)


class Portal:
    """An event loop on a thread of its own. :func:`get_portal` returns the process's only one."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._executor = _full_executor()
        self._loop.set_default_executor(self._executor)
        self._keys = itertools.count()
        self._closers: dict[int, Closer] = {}
        self._closed_at_exit: weakref.WeakSet[Closeable] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: set[_Call[Any]] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="harbor-gym-portal", daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this process got the portal by a fork: its thread stayed in the parent, so nothing can be called."""
        return os.getpid() != self._pid

    def call[**P, T](self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function(*args, **kwargs)`` on the portal's loop, and block until it is done.

        An interrupt (Ctrl-C) cancels the work, and is raised once the work has cleaned up.

        Args:
            function: An async function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            UsageError: The caller is a forked child, or runs on the portal's own thread, or the interpreter is exiting.
        """
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking call on the event loop that must do its work: await the async env instead")
        call = self._begin(function, *args, **kwargs)
        try:
            return call.outcome.result()
        except BaseException:
            if not call.outcome.done():  # raised in this thread, while waiting
                self._loop.call_soon_threadsafe(call.cancel)
                concurrent.futures.wait((call.outcome,))  # else Ctrl-C would end the process beside a running sandbox
            raise

    def submit[**P, T](
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        """Begin to run ``function(*args, **kwargs)`` on the portal's loop, and return at once. From any thread.

        Cancelling the future cancels the work, which then cleans up on the loop; only the interpreter's exit waits for
        that. An exit before the end cancels the work, and the future raises ``UsageError``.

        Args:
            function: An async function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            UsageError: The caller is a forked child, or the interpreter is exiting.
        """
        call = self._begin(function, *args, **kwargs)
        call.outcome.add_done_callback(lambda outcome: self._cancel(call) if outcome.cancelled() else None)
        return call.outcome

    async def run[**P, T](self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function(*args, **kwargs)`` on the portal's loop, and wait for it on the caller's own.

        A cancellation cancels the work, and is raised once the work has cleaned up. On the portal's own loop this is a
        plain await.

        Args:
            function: An async function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            UsageError: The caller is a forked child, or the interpreter is exiting.
        """
        if asyncio.get_running_loop() is self._loop:
            return await function(*args, **kwargs)
        call = self._begin(function, *args, **kwargs)
        outcome = asyncio.wrap_future(call.outcome)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if not outcome.done():
                self._cancel(call)
                await shielded(asyncio.wait((outcome,)))
                if not outcome.cancelled():
                    outcome.exception()  # retrieved: the cancellation is what is reported
            raise

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the portal's loop."""
        return threading.current_thread() is self._thread and not self.is_inherited

    def close_at_exit(self, item: "Closeable") -> None:
        """Close ``item`` at the interpreter's exit, if it still exists then. It is not kept alive.

        Args:
            item: Something with an async, idempotent ``close``.
        """
        self._closed_at_exit.add(item)

    def own(self, owner: object, close: Closer) -> Callable[[], None]:
        """Run ``close`` on the loop once ``owner`` is garbage, or at the interpreter's exit.

        Args:
            owner: The object that the caller holds.
            close: An async function that must not refer to ``owner``.

        Returns:
            A function that undoes this, for an owner that was closed explicitly.
        """
        key = next(self._keys)
        self._closers[key] = close
        finalizer = weakref.finalize(owner, self._abandon, key)
        finalizer.atexit = False  # at that time asyncio can no longer start threads

        def disown() -> None:
            finalizer.detach()
            self._closers.pop(key, None)

        return disown

    def shut_down(self) -> None:
        """Close everything that is owned, then the loop. Later calls are refused. Idempotent."""
        if self._is_closed or self.is_inherited:
            return
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(_EXIT_TIMEOUT_SEC)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_EXIT_TIMEOUT_SEC)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()  # which shuts the executor down without waiting
            for call in list(self._calls):
                call.refuse()

    def _begin[**P, T](
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> "_Call[T]":
        self._check_caller()
        call: _Call[T] = _Call()
        self._calls.add(call)  # before it is scheduled, so that a loop that closes meanwhile refuses it
        call.outcome.add_done_callback(lambda _: self._calls.discard(call))
        work = function(*args, **kwargs)
        try:
            self._loop.call_soon_threadsafe(self._start, call, work)
        except RuntimeError:  # the loop was closed meanwhile
            work.close()
            call.refuse()
        return call

    def _cancel(self, call: "_Call[Any]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and all its work ended
            self._loop.call_soon_threadsafe(call.cancel)

    def _check_caller(self) -> None:
        if self.is_inherited:
            raise UsageError(
                f"this belongs to process {self._pid}, and its forked child {os.getpid()} can't use it: make "
                "environments in the process that uses them, or start processes with the 'spawn' method"
            )
        if self._is_closed:
            raise UsageError("the interpreter is exiting: no call can be made any more")

    def _start[T](self, call: "_Call[T]", work: Coroutine[Any, Any, T]) -> None:
        async def unless_cancelled() -> T:
            if call.outcome.done():
                raise asyncio.CancelledError
            return await work

        call.task = self._keep(unless_cancelled())
        call.task.add_done_callback(lambda _: work.close())  # it may never have begun
        call.task.add_done_callback(call.finish)

    def _keep[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _abandon(self, key: int) -> None:
        """Close an object whose owner is gone. Runs in any thread, at any moment, so it must not wait."""
        close = self._closers.pop(key, None)
        if close is not None and not self.is_inherited and not self._is_closed:
            self._loop.call_soon_threadsafe(lambda: self._keep(_close_quietly(close)))

    async def _close_all(self) -> None:
        closers = list(self._closers.values())
        self._closers.clear()
        running = {task for task in self._tasks if task is not asyncio.current_task()}
        await _close_side_by_side(closers)
        await _cancel(running)
        # What the calls left open: first objects with a close of their own, then the rest of the loop's tasks.
        await _close_side_by_side([item.close for item in self._closed_at_exit])
        await _cancel(asyncio.all_tasks() - {asyncio.current_task()})


class _Call[T]:
    """One call: the task on the loop, and its outcome for the waiting thread."""

    def __init__(self) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.task: asyncio.Task[T] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def finish(self, task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the waiting caller has cancelled it
            if task.cancelled():
                self.outcome.set_exception(UsageError("the call was cancelled: the interpreter is exiting"))
            elif error is not None:
                self.outcome.set_exception(error)
            else:
                self.outcome.set_result(task.result())

    def refuse(self) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.outcome.set_exception(UsageError("the interpreter is exiting: no call can be made any more"))


def _full_executor() -> ThreadPoolExecutor:
    """Return an executor that has started all its threads: at the interpreter's exit, no more can be started."""
    executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="harbor-gym-portal")
    everyone = threading.Barrier(_WORKERS + 1)
    for _ in range(_WORKERS):
        executor.submit(everyone.wait)
    everyone.wait()
    return executor


_lock = threading.Lock()
_portal: Portal | None = None


def get_portal() -> Portal:
    """Return this process's portal, started on first use.

    Raises:
        UsageError: The interpreter is exiting.
    """
    global _portal
    with _lock:
        if _portal is None:
            _register_exit()
            _portal = Portal()
        return _portal


def _register_exit() -> None:
    # atexit comes too late: by then the executor behind asyncio.to_thread has shut down, which closing needs.
    try:
        threading._register_atexit(_shut_down)  # pyright: ignore[reportAttributeAccessIssue]  # nothing public runs before executors shut down
    except RuntimeError as exc:
        raise UsageError("the interpreter is exiting: no environment can be started any more") from exc


def _shut_down() -> None:
    if _portal is not None:
        _portal.shut_down()


def _forget() -> None:
    """Start anew in a forked child, where neither the portal's thread nor a lock's holder exists."""
    global _portal, _lock
    _portal, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def current_portal() -> Portal | None:
    """Return the portal if the caller runs on its loop; None on any other loop."""
    return _portal if _portal is not None and _portal.is_current else None


async def _close_side_by_side(closers: Iterable[Closer]) -> None:
    async with asyncio.TaskGroup() as group:
        for close in closers:
            group.create_task(_close_quietly(close))


async def _cancel(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    for task in running:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("work that the exit cancelled failed: %s", error)


async def _close_quietly(close: Closer) -> None:
    try:
        await close()
    except Exception:  # No caller waits for this, and other objects must still be closed.
        logger.warning("an object that was left open could not be closed", exc_info=True)
