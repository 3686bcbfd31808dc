"""A host of agents in sandboxes that call their policy through tunnels without end, and that is killed for it.

``python -m tests.helpers.gateway.killed_trials TASK COUNT AT_ONCE SEED MAX_SEC`` forks, COUNT times, a child that runs
AT_ONCE trials, kills it with SIGKILL at a random moment after all have been answered once, and prints the fate of
each trial as JSON.
"""

import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from harbor_gym._runtime.owners import owner_label
from harbor_gym.gateway import Gateway, Session
from harbor_gym.gateway.trials import open_tunnel_for_agent, sandbox_url
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.supervisor.forkserver_client import end_forkserver
from harbor_gym.types import Sample
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.gateway.clients import tool_call
from tests.helpers.gateway.inner_agent import INNER_AGENT
from tests.helpers.killed_host import adopt_orphans, kill_one, one_reset, orphans

_CALL = [*map(ord, tool_call(command="sleep 0.02")), END]


async def trials(task: Path, output: int, at_once: int) -> None:
    """Run the trials; write ``owner LABEL``, ``port NUMBER``, and ``answered`` as each goes on from an answer."""
    os.write(output, f"owner {owner_label()}\n".encode())
    async with Gateway(_call_for_ever, CharacterCodec()) as gateway, asyncio.TaskGroup() as group:
        os.write(output, f"port {gateway.address[1]}\n".encode())
        for _ in range(at_once):
            group.create_task(_trial(task, gateway, output))


async def _trial(task: Path, gateway: Gateway, output: int) -> None:
    async def sample(prompt: Sequence[int]) -> Sample:
        if len(session.calls) == 1:
            os.write(output, b"answered\n")
        return await _call_for_ever(prompt)

    session: Session = gateway.open_session(sampler=sample)
    trial = await Trial.create(
        TrialConfig(
            task=TaskConfig(path=task),
            trials_dir=task.parent / "trials",
            agent=AgentConfig(import_path=INNER_AGENT, kwargs={"url": sandbox_url(session)}),
            environment=environment_config("local"),
        )
    )
    open_tunnel_for_agent(trial, gateway, session)
    await trial.run()


async def _call_for_ever(prompt: Sequence[int]) -> Sample:
    await asyncio.sleep(0.01)
    return Sample(_CALL, [-1.0] * len(_CALL))


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def main(task: Path, count: int, at_once: int, seed: int, max_sec: float) -> None:
    adopt_orphans()
    asyncio.run(one_reset("local", task))
    end_forkserver()
    generator = random.Random(seed)
    lines: list[str] = []
    for _ in range(count):
        lines += kill_one(lambda output: trials(task, output, at_once), 2 + at_once, generator.uniform(0.0, max_sec))
    found = {
        "owners": [line.removeprefix("owner ") for line in lines if line.startswith("owner ")],
        "answered": lines.count("answered"),
        "orphans": orphans(),
        "open_ports": [line for line in lines if line.startswith("port ") and is_open(int(line.split()[1]))],
    }
    print(json.dumps(found))  # noqa: T201  # a program's own output


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
