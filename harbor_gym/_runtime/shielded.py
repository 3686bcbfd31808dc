"""Work that a cancellation must not cut short."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def shielded[T](work: Awaitable[T]) -> T:
    """Wait for ``work`` to its end, also when cancelled meanwhile; the cancellation is delivered afterwards.

    An error of ``work`` is raised in place of the cancellation.

    Args:
        work: A coroutine, or a task, for which others may wait too.
    """
    task = asyncio.ensure_future(work)
    cancellation = await _end_of(task)
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, also when cancelled meanwhile; raises none of the task's errors."""
    task.cancel()
    cancellation = await _end_of(task)
    if not task.cancelled():
        task.exception()  # retrieved: asyncio would log it
    if cancellation is not None:
        raise cancellation


async def ended(work: asyncio.Future[Any]) -> None:
    """Wait until ``work`` has ended. A cancellation ends only the wait; an error of ``work`` is not raised."""
    if work.done():
        return
    waiting: asyncio.Future[None] = work.get_loop().create_future()

    def wake(_: object) -> None:
        if not waiting.done():
            waiting.set_result(None)

    work.add_done_callback(wake)
    try:
        await waiting
    finally:
        work.remove_done_callback(wake)


async def _end_of(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a task has ended, and return the last cancellation that came meanwhile."""
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await ended(task)
        except asyncio.CancelledError as exc:
            cancellation = exc  # also where the work has just ended: it is not reported twice
    return cancellation
