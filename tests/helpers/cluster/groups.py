"""Groups of episodes as any adapter could play them: a function over configurations."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.cache import cache_dir
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import Transcript

SOLVE = [("echo done > /srv/answer\n", 1.0)]


def play_group(config: TerminalEnvConfig, label: str, transcripts: Path, size: int) -> list[dict[str, Any]]:
    """Play a group's episodes concurrently, write a transcript for each, and return their results."""
    return asyncio.run(_play(config, label, transcripts, size))


async def _play(config: TerminalEnvConfig, label: str, transcripts: Path, size: int) -> list[dict[str, Any]]:
    async with asyncio.TaskGroup() as group:
        playing = [group.create_task(_episode(config, label, transcripts, number)) for number in range(size)]
    return [task.result() for task in playing]


async def _episode(config: TerminalEnvConfig, label: str, transcripts: Path, number: int) -> dict[str, Any]:
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step(SOLVE)
        result = await env.finish()
    path = transcripts / label / f"episode_{number}.json"
    await asyncio.to_thread(write_transcript, path, Transcript(), labels={"group": label, "episode": number})
    return {
        "group": label,
        "episode": number,
        "reward": result.reward,
        "process": os.getpid(),
        "node": tempfile.gettempdir(),
        "cache": str(cache_dir()),
        "task": str(config.task_dir),
    }


def wait_and_note(folder: Path) -> None:
    """Wait for ever in an event loop, and leave a file at the beginning and one at the end."""

    async def wait() -> None:
        (folder / "began").touch()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            (folder / "ended").touch()

    asyncio.run(wait())
