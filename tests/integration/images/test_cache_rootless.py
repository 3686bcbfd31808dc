"""An ordinary user's cache, which holds files of the user's subordinate ids: filled, stood upon and emptied."""

import json

import pytest

from tests.helpers.rootless import run_rootless

pytestmark = pytest.mark.local

_USE = """
import asyncio, json, os
from pathlib import Path
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.cache import cache_dir, entries, prune
from tests.helpers.tasks import BASE, write_task

def files_of_others():
    # The base is mounted there for the test.
    walks = [walk for kind in ("images", "layers") for walk in os.walk(cache_dir() / kind)]
    return sum(os.lstat(Path(at, name)).st_uid != os.getuid() for at, _, names in walks for name in names)

async def main():
    built = "RUN install -o 9 -g 9 -m 640 /etc/hostname /srv/built"
    task = write_task(Path.home() / "task", dockerfile=f"FROM {BASE}\\n{built}\\nWORKDIR /srv\\n")
    prepare = "install -o 7 -g 7 -m 600 /etc/hostname /srv/prepared"
    config = TerminalEnvConfig(task_dir=task, sandbox="local", setup_command=prepare)
    seen = []
    for _ in range(2):
        async with AsyncTerminalGymEnv(config) as env:
            _, info = await env.reset()
            observation, *_ = await env.step([("stat -c %u:%a /srv/prepared /srv/built\\n", 30.0)])
            seen.append([info["setup"], "7:600" in observation, "9:640" in observation])
    return seen

async def stand_on(rootfs):
    task = write_task(Path.home() / "standing")
    config = TerminalEnvConfig(task_dir=task, sandbox="local", sandbox_options={"rootfs": str(rootfs)})
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        observation, *_ = await env.step([("stat -c %u:%g /etc/shadow\\n", 30.0)])
        return "0:42" in observation

(rootfs,) = (cache_dir() / "bases").glob("*.tar")
stands = asyncio.run(stand_on(rootfs))
seen = asyncio.run(main())
before = [one.kind for one in entries()], files_of_others()
gone = [one.kind for one in prune(everything=True)]
after = [one.kind for one in entries()], files_of_others()
print(json.dumps({"stands": stands, "seen": seen, "before": before, "gone": gone, "after": after}))
"""


@pytest.mark.usefixtures("nothing_left")
async def test_layers_of_subordinate_ids_are_set_up_and_pruned() -> None:
    output = json.loads((await run_rootless("-c", _USE)).stdout.splitlines()[-1])
    assert output["stands"]
    assert output["seen"] == [["shared", True, True]] * 2
    kinds, others = output["before"]
    assert "image" in kinds
    assert others > 0
    assert output["gone"].count("image") == kinds.count("image")
    assert output["after"] == [["base"], 0]
