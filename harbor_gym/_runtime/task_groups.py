"""A task group that raises the first failure of its tasks alone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncGenerator[asyncio.TaskGroup]:
    """Run a task group and raise its first failure alone, which has cancelled the other tasks."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
