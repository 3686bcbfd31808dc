"""The failure that the caller of tasks side by side gets."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from harbor_gym._runtime.task_groups import task_group


async def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


async def side_by_side(*jobs: Coroutine[Any, Any, object], error: Exception | None = None) -> None:
    async with task_group() as group:
        for job in jobs:
            group.create_task(job)
        if error is not None:
            raise error


async def test_the_first_failure_is_raised_alone_with_its_cause_and_cancels_the_others() -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    cause = OSError("why")

    async def wait() -> None:
        await other

    with pytest.raises(ValueError, match="first") as failed:
        await side_by_side(wait(), fail(ValueError("first"), cause))
    assert (failed.value.__cause__, other.cancelled()) == (cause, True)


async def test_a_failure_in_a_group_within_a_group_is_raised_alone() -> None:
    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("inside")))

    with pytest.raises(ValueError, match="inside"):
        await side_by_side(inner())


async def test_a_failure_of_the_body_is_raised_alone() -> None:
    with pytest.raises(KeyError):
        await side_by_side(asyncio.Event().wait(), error=KeyError("body"))


async def test_a_cancellation_ends_the_tasks_and_stays_one() -> None:
    begun, other = asyncio.Event(), asyncio.ensure_future(asyncio.Event().wait())

    async def wait() -> None:
        begun.set()
        await other

    running = asyncio.ensure_future(side_by_side(wait()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert other.cancelled()
