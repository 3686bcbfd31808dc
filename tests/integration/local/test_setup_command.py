"""``TerminalEnvConfig.setup_command``: once for all sandboxes where it can be kept, else at each start."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxStartError
from tests.helpers.engines import require_engine

FAKE = "harbor_gym.testing:FakeEnvironment"


def make_env(task_dir: Path, command: str, **settings: Any) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task_dir, setup_command=command, **settings))


async def test_a_sandbox_that_keeps_nothing_is_set_up_at_each_start(task_dir: Path) -> None:
    options = {"answers": {"prepare": "done", "break": ("last words\n", 3)}}
    async with make_env(task_dir, "prepare", sandbox=FAKE, sandbox_options=options) as env:
        for _ in range(2):
            _, info = await env.reset()
            assert info.get("setup") == "each_start"
    async with make_env(task_dir, "break", sandbox=FAKE, sandbox_options=options) as env:
        with pytest.raises(SandboxStartError, match="status 3: last words"):
            await env.reset()


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_local_sandboxes_share_one_set_up_which_is_roots(task_dir: Path) -> None:
    require_engine("local")
    with (task_dir / "task.toml").open("a") as toml:
        toml.write('[agent]\nuser = "nobody"\n')
    command = f"id -un > /srv/who; date +%N >> /srv/runs; : {task_dir}"
    seen: set[str] = set()
    async with make_env(task_dir, command, sandbox="local") as env:
        for _ in range(2):
            _, info = await env.reset()
            assert info.get("setup") == "shared"
            seen.add((await env.step([("cat /srv/who /srv/runs; id -un\n", 30.0)]))[0])
    (text,) = seen
    assert "root\n" in text
    assert "nobody" in text
    async with make_env(task_dir, "echo last words; exit 3", sandbox="local") as env:
        with pytest.raises(SandboxStartError, match="status 3: last words"):
            await env.reset()
