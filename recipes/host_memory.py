"""Print what one more idle environment costs: in this process, and in the processes below it.

python recipes/host_memory.py --env local --count 64
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.procfs import descendants
from harbor_gym.bench.memory import pss_bytes

TASK = Path(__file__).parent.parent / "tasks" / "devops_task"


def main(
    env: Annotated[str, typer.Option(help="Sandbox, as train.py takes it.")] = "harbor_gym.testing:FakeEnvironment",
    count: Annotated[int, typer.Option(min=1, help="Environments, all at their first screen.")] = 64,
) -> None:
    """Measure proportional set sizes before and after so many resets; a first one, with all imports, comes before."""
    here, below = asyncio.run(measure(env, count))
    print(f"{env}: {count} idle environments, each {here:.0f} KiB in this process and {below:.0f} KiB below it")


async def measure(sandbox: str, count: int) -> tuple[float, float]:
    """Return KiB an environment, of this process and of those below it."""
    config = TerminalEnvConfig(task_dir=TASK, sandbox=sandbox)
    first, *others = [AsyncTerminalGymEnv(config) for _ in range(count + 1)]
    try:
        await first.reset()
        before = sizes()
        await asyncio.gather(*(item.reset() for item in others))
        after = sizes()
    finally:
        await asyncio.gather(*(item.close() for item in (first, *others)))
    here, below = ((now - then) / count / 1024 for now, then in zip(after, before, strict=True))
    return here, below


def sizes() -> tuple[int, int]:
    """Return the bytes that this process holds, and those below it."""
    return pss_bytes([os.getpid()]), pss_bytes(descendants(os.getpid()))


if __name__ == "__main__":
    typer.run(main)
