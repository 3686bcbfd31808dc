"""Episodes that can be copied with their processes, and such copies."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig


def config_of(task_dir: Path, **settings: Any) -> TerminalEnvConfig:
    settings = {"sandbox": "local", "confirm_task_complete": False, "sandbox_options": {"forkable": True}, **settings}
    return TerminalEnvConfig(task_dir=task_dir, **settings)


@contextlib.asynccontextmanager
async def copied(config: TerminalEnvConfig, *lines: str, n: int = 1) -> AsyncGenerator[list[AsyncTerminalGymEnv]]:
    """Yield an episode that has typed these lines, and behind it n copies."""
    async with contextlib.AsyncExitStack() as stack:
        parent = await stack.enter_async_context(AsyncTerminalGymEnv(config))
        await parent.reset()
        for line in lines:
            await typed(parent, line)
        copies = [await stack.enter_async_context(copy) for copy in await parent.fork(n, mode="exact")]
        yield [parent, *copies]


async def typed(env: AsyncTerminalGymEnv, line: str, wait_sec: float = 10.0) -> str:
    result = await env.step([(line, wait_sec)])
    assert not result.done
    return result.observation
