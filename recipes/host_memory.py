"""Print the memory of one more idle environment: in this process, and in its sandbox on this machine.

python recipes/host_memory.py --env local --count 64
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym import TerminalEnvConfig
from harbor_gym.bench.memory import measure_idle_memory

TASK = Path(__file__).parent.parent / "tasks" / "devops_task"


def main(
    env: Annotated[str, typer.Option(help="Sandbox, as train.py takes it.")] = "harbor_gym.testing:FakeEnvironment",
    count: Annotated[int, typer.Option(min=1, help="Environments, all at their first screen.")] = 64,
) -> None:
    """Measure the memory per idle sandbox, as `harbor-gym bench reset` does."""
    config = TerminalEnvConfig(task_dir=TASK, sandbox=env)
    idle = asyncio.run(measure_idle_memory(config, count=count))
    print(
        f"{env}: {count} idle environments, each {idle.host_bytes / 1024:.0f} KiB in this process and "
        f"{idle.sandbox_bytes / 1024:.0f} KiB outside it ({idle.below_bytes / 1024:.0f} in processes, "
        f"{idle.files_bytes / 1024:.0f} in files)"
    )


if __name__ == "__main__":
    typer.run(main)
