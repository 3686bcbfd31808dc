"""A policy that breaks its own sandbox has failed: it is graded, or gets 0; never an error that voids the episode."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalConfig, TerminalEnvConfig
from harbor_gym.errors import VerifierError
from harbor_gym.sandboxes.images.debian_base import ensure_base_tar
from harbor_gym.types import EpisodeInfo
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.rootless import rootless_user, run_as
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.usefixtures("nothing_left")]


async def play(task_dir: Path, *keystrokes: str, sandbox: str = "local", **settings: Any) -> tuple[float, EpisodeInfo]:
    """Type the keystrokes, declare the task complete unless the episode is over before, and return how it ended."""
    config = TerminalEnvConfig(
        task_dir=task_dir,
        sandbox=sandbox,
        confirm_task_complete=False,
        terminal=TerminalConfig(max_wait_sec=30.0),
        **settings,
    )
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for keys in keystrokes:
            _, reward, done, info = await env.step([(keys, 2.0 if keys in BLOWS.values() else 30.0)])
            if done:
                return reward, info
        _, reward, done, info = await env.step(COMPLETE)
        assert done
        return reward, info


BLOWS = {
    "stops everybody": "kill -STOP -1\n",
    "forks without end": "bomb() { bomb | bomb & }; bomb\n",
    "stops and forks": "(while :; do kill -STOP -1; done) & bomb() { bomb | bomb & }; bomb\n",
    "kills everybody": "kill -KILL -1\n",
}
"""What leaves the files as they were: the host can still enter, and the task is graded."""

RUINS = {
    "a shell that does nothing": "cp /bin/true /tmp/t; cp -f /tmp/t /usr/bin/bash\n",
    "a shell that answers wrongly": "echo '#!/bin/echo fine' > /tmp/t; chmod +x /tmp/t; mv /tmp/t /usr/bin/bash\n",
    "no shell": "rm -f /usr/bin/bash /usr/bin/dash /usr/bin/sh\n",
    "a renamed shell": "mv /usr/bin/bash /usr/bin/hidden\n",
    "no programs": "rm -rf /usr /bin\n",
}
"""What leaves nothing to run the tests with."""


@pytest.mark.local
@pytest.mark.parametrize("blow", BLOWS)
async def test_who_breaks_the_terminal_is_graded(tmp_path: Path, blow: str) -> None:
    task_dir = write_task(tmp_path / "task")
    reward, info = await play(task_dir, DONE, BLOWS[blow], sandbox_options={"max_processes": 200})
    assert (reward, info.get("rewards")) == (1.0, {"reward": 1.0})
    assert info.get("end_reason") in (EndReason.SESSION_ENDED, EndReason.COMPLETED)


@pytest.mark.local
@pytest.mark.parametrize("ruin", RUINS)
async def test_who_leaves_nothing_to_grade_with_has_failed(tmp_path: Path, ruin: str) -> None:
    reward, info = await play(write_task(tmp_path / "task"), DONE, RUINS[ruin])
    assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
    assert (info.get("rewards"), info.get("episode_reward"), info.get("truncated")) == ({}, 0.0, False)
    assert info.get("breakage")


@pytest.mark.local
async def test_a_verifier_that_is_mute_by_itself_is_not_the_policys_doing(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="must write"):
        await play(write_task(tmp_path / "mute", test_sh="#!/bin/bash\ntrue\n"), "rm /usr/bin/ls\n")


@pytest.mark.local
@pytest.mark.parametrize("mark", ["printf() { echo X; }\n", "PROMPT_COMMAND=\"echo 'A B'\"\n", "echo() { :; }\n"])
async def test_who_forges_what_the_terminal_shows_is_graded(tmp_path: Path, mark: str) -> None:
    reward, _ = await play(write_task(tmp_path / "task"), DONE, mark, "true\n")
    assert reward == 1.0


@pytest.mark.local
async def test_what_is_left_of_a_multi_step_task_counts_as_nothing(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "steps", toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    for name in ("one", "two"):
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Do it.\n")
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(DONE, 5.0)])
        _, reward, done, _ = await env.step(COMPLETE)
        assert (reward, done) == (0.0, False)
        _, reward, done, info = await env.step([(RUINS["no shell"], 5.0)])
        if not done:
            _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info.get("end_reason")) == (0.5, True, EndReason.SANDBOX_BROKEN)
    assert (info.get("rewards"), info.get("step_rewards")) == ({"reward": 0.5}, ({"reward": 1.0}, {}))


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_an_ordinary_users_policy_fares_no_better(tmp_path: Path) -> None:
    base = await ensure_base_tar()

    def run() -> str:
        with rootless_user() as (user, home):
            done = run_as(user, home, sys.executable, "-m", __name__, base=base)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

    output = json.loads((await asyncio.to_thread(run)).splitlines()[-1])
    assert {name: tuple(output[name]) for name in RUINS} == dict.fromkeys(RUINS, (0.0, "sandbox_broken"))
    assert {name: output[name][0] for name in BLOWS} == dict.fromkeys(BLOWS, 1.0)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_on_docker_the_same_holds(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    reward, info = await play(task_dir, DONE, BLOWS["stops everybody"], sandbox="docker")
    assert (reward, info.get("end_reason")) == (1.0, EndReason.SESSION_ENDED)
    reward, info = await play(task_dir, DONE, RUINS["no shell"], sandbox="docker")
    assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)


async def _play_all() -> None:
    ends: dict[str, tuple[float, str]] = {}
    for name, keys in {**BLOWS, **RUINS}.items():
        task_dir = write_task(Path.home() / name.replace(" ", "-"))
        reward, info = await play(task_dir, DONE, keys, sandbox_options={"max_processes": 200})
        ends[name] = (reward, info["end_reason"].value if "end_reason" in info else "")
    sys.stdout.write(f"{json.dumps(ends)}\n")


if __name__ == "__main__":
    asyncio.run(_play_all())
