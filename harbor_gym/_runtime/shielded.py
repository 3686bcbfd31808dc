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
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancellation = exc  # also where the work has just ended: it is not reported twice
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, also when cancelled meanwhile; raises none of the task's errors."""
    task.cancel()
    try:
        await shielded(asyncio.wait((task,)))
    finally:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved: asyncio would log it
