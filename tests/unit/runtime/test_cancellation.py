"""Work that is not cut short, and cancellations that are not lost."""

import asyncio

import pytest

from harbor_gym._runtime.shielded import shielded


async def begun[T](work: asyncio.Future[T]) -> asyncio.Task[T]:
    waiting = asyncio.create_task(shielded(work))
    await asyncio.sleep(0)
    return waiting


async def test_the_work_ends_first_and_the_cancellation_comes_after() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = await begun(work)
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    work.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_is_delivered_however_close_to_the_end_it_comes(turns: int) -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = await begun(work)
    work.set_result(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert waiting.result() == 1


async def test_work_that_was_cancelled_cancels_who_waits_for_it() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = await begun(work)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_error_of_the_work_is_reported_instead_of_the_cancellation() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = await begun(work)
    waiting.cancel()
    await asyncio.sleep(0)
    work.set_exception(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        await waiting
