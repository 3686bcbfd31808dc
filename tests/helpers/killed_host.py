"""A program that runs episodes without end and is killed for it. ``python -m tests.helpers.killed_host`` has two modes.

``script SANDBOX TASK`` runs them as a user's script would. ``rounds SANDBOX TASK COUNT AT_ONCE SEED MAX_SEC`` forks,
COUNT times, a child that runs AT_ONCE of them side by side, kills it with SIGKILL at a random moment, and prints the
fate of each sandbox as JSON. Forking saves the seconds of imports; orphans come to the program itself, so it can count.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.owners import owner_label
from harbor_gym.sandboxes.supervisor.forkserver_client import end_forkserver
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.tasks import DONE

_PR_SET_CHILD_SUBREAPER = 36


async def episodes(sandbox: str, task: Path, output: int) -> None:
    """Run episodes one after the other for ever, and write a line for each that begins and ends."""
    while True:
        os.write(output, b"began\n")
        config = TerminalEnvConfig(task_dir=task, sandbox=sandbox, confirm_task_complete=False)
        async with AsyncTerminalGymEnv(config) as env:
            await env.reset()
            await env.step([("sleep 1000 &\n", 1.0), (DONE, 1.0)])
            await env.step('{"analysis": "", "plan": "", "commands": [], "task_complete": true}')
        os.write(output, b"ended\n")


async def one_reset(sandbox: str, task: Path) -> None:
    """Import everything and build the task's image, so that a later kill hits an episode."""
    async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task, sandbox=sandbox)) as env:
        await env.reset()


async def side_by_side(sandbox: str, task: Path, output: int, at_once: int) -> None:
    os.write(output, f"owner {owner_label()}\n".encode())
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(episodes(sandbox, task, output))


def kill_one(work: Callable[[int], Coroutine[Any, Any, None]], first_lines: int, delay_sec: float) -> list[str]:
    """Fork a child, kill it after a while, and return the lines that it wrote.

    Args:
        work: The child's work; it gets the file descriptor to write lines to.
        first_lines: Lines to wait for before the delay begins.
        delay_sec: Time from the last of them to the signal.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(work(write))
        os._exit(1)
    os.close(write)
    with os.fdopen(read) as lines:
        printed = [lines.readline().strip() for _ in range(first_lines)]
        time.sleep(delay_sec)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"it ended before it was killed: {printed}"
        return [*printed, *map(str.strip, lines)]


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def orphans() -> list[str]:
    """Wait until the processes that came to this one are gone; return those that stay, and end them."""
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > deadline:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
            found = [
                Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").replace("\0", " ")[:300]
                for child in children
            ]
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            return found
        time.sleep(0.02)


def rounds(sandbox: str, task: Path, count: int, at_once: int, seed: int, max_sec: float) -> None:
    adopt_orphans()
    asyncio.run(one_reset(sandbox, task))
    end_forkserver()
    generator = random.Random(seed)
    lines: list[str] = []
    for _ in range(count):
        lines += kill_one(
            lambda output: side_by_side(sandbox, task, output, at_once), 1 + at_once, generator.uniform(0.0, max_sec)
        )
    print(  # noqa: T201  # a program's own output
        json.dumps(
            {
                "owners": [line.removeprefix("owner ") for line in lines if line.startswith("owner ")],
                "began": lines.count("began"),
                "ended": lines.count("ended"),
                "orphans": orphans(),
            }
        )
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["script", sandbox, task]:
            asyncio.run(episodes(sandbox, Path(task), sys.stdout.fileno()))
        case ["rounds", sandbox, task, count, at_once, seed, max_sec]:
            rounds(sandbox, Path(task), int(count), int(at_once), int(seed), float(max_sec))
        case _:
            raise SystemExit(__doc__)
