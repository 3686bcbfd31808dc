"""Copies of a running episode, in real sandboxes: by replay, and with their processes."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, ForkDivergedError, TerminalEnvConfig
from harbor_gym.types import ForkMode
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, DONE, UNDONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

LIVED = [
    "mkdir -p /srv/deep && cd /srv/deep && echo kept > file\n",
    "x=41; f() { echo $((x+1)); }\n",
    "(while :; do sleep 1; done) >/dev/null &\n",
    "echo $$; cat file; f; jobs\n",
]


in_each_mode = pytest.mark.parametrize("mode", ["replay", pytest.param("exact", marks=pytest.mark.criu)])


def config_of(task_dir: Path, mode: ForkMode = "replay", **settings: Any) -> TerminalEnvConfig:
    settings = {"sandbox": "local", "confirm_task_complete": False, **settings}
    if mode == "exact":
        settings["sandbox_options"] = {"forkable": True}
    return TerminalEnvConfig(task_dir=task_dir, **settings)


async def started(config: TerminalEnvConfig, *lines: str) -> tuple[AsyncTerminalGymEnv, str]:
    env, observation = AsyncTerminalGymEnv(config), ""
    await env.reset()
    for line in lines:
        observation = (await env.step([(line, 10.0)])).observation
    return env, observation


async def ask(env: AsyncTerminalGymEnv, line: str) -> str:
    return (await env.step([(line, 10.0)])).observation


async def close(*envs: AsyncTerminalGymEnv) -> None:
    for env in envs:
        await env.close()


@in_each_mode
async def test_files_directory_variables_and_jobs_are_in_the_copies(task_dir: Path, mode: ForkMode) -> None:
    parent, _ = await started(config_of(task_dir, mode), *LIVED)
    copies = await parent.fork(2, mode=mode)
    for env in (parent, *copies):
        seen = await ask(
            env, "pwd; cat file; f; jobs | grep -c Running; kill %1; wait %1 2>/dev/null; jobs | grep -c Running\n"
        )
        for word in ("/srv/deep", "kept", "42"):
            assert word in seen
        assert "\n1\n0\n" in seen
    await close(parent, *copies)


@in_each_mode
async def test_no_copy_sees_what_another_writes_or_runs(task_dir: Path, mode: ForkMode) -> None:
    parent, _ = await started(config_of(task_dir, mode), *LIVED)
    first, second = copies = await parent.fork(2, mode=mode)
    await ask(first, "echo first > /srv/deep/file; echo first > /tmp/mine; exec -a of-first sleep 1000 &\n")
    await ask(parent, "echo parent > /srv/answer; x=1\n")
    for env, answer in ((second, "42"), (first, "42"), (parent, "2")):
        assert f"\n{answer}\n" in await ask(env, "clear; f\n")
    seen = await ask(
        second, "clear; cat file /tmp/mine /srv/answer; grep -c [o]f-first /proc/[0-9]*/cmdline | grep -v :0\n"
    )
    assert "kept" in seen
    assert seen.count("No such file") == 2
    assert "cmdline:" not in seen
    ends = [await env.step([(line, 10.0)]) for env, line in ((first, DONE), (second, UNDONE))]
    assert not any(end.done for end in ends)
    rewards = [(await env.finish()).reward for env in (first, second, parent)]
    assert rewards == [1.0, 0.0, 0.0]
    await close(parent, *copies)


@in_each_mode
async def test_an_editor_that_is_open_is_open_in_the_copy(task_dir: Path, mode: ForkMode) -> None:
    parent, _ = await started(config_of(task_dir, mode), "printf 'one\\ntwo\\n' > text; vi text\n", "ihello ")
    (copy,) = await parent.fork(1, mode=mode)
    for env in (parent, copy):
        assert "hello one" in await ask(env, "Escape")
        await ask(env, ":wq\n")
        assert "\nhello one\n" in await ask(env, "cat text\n")
    await close(parent, copy)


@pytest.mark.parametrize("line", ["date +%N\n", "echo $RANDOM$RANDOM\n", "head -c8 /dev/urandom | od -An -tx1\n"])
async def test_a_command_that_varies_is_named_by_its_turn(task_dir: Path, line: str) -> None:
    parent, _ = await started(config_of(task_dir), "true\n", line, "true\n")
    with pytest.raises(ForkDivergedError, match="turn 2") as caught:
        await parent.fork(2)
    assert caught.value.turn == 2
    assert caught.value.diff.startswith("--- the episode\n+++ its replay\n")
    assert "alive" in await ask(parent, "echo alive\n")
    await parent.close()


async def test_a_slower_replay_is_waited_for(task_dir: Path) -> None:
    """A command that ended before its deadline in the episode may take longer in the copy, on a busy machine."""
    parent = AsyncTerminalGymEnv(config_of(task_dir))
    await parent.reset()
    seen = await parent.step([("[ -e /srv/slow ] && sleep 7; touch /tmp/was; echo over\n", 5.0)])
    assert seen.info.get("waits") == ("prompt",)
    snapshot = await parent.snapshot()
    await parent.close()
    slow = {"setup_command": "touch /srv/slow"}
    config = snapshot.config.model_copy(update=slow)
    start = replace(snapshot, config=config)
    async with AsyncTerminalGymEnv(config.model_copy(update={"start_from": start})) as env:
        observation, _ = await env.reset()
        assert observation == seen.observation


@in_each_mode
async def test_a_cancelled_fork_leaves_nothing(task_dir: Path, mode: ForkMode) -> None:
    parent, _ = await started(config_of(task_dir, mode), "sleep 1\n", "sleep 2\n")
    for pause_sec in (0.02, 0.05, 0.2, 0.5, 2.0):
        forking = asyncio.ensure_future(parent.fork(2, mode=mode))
        await asyncio.sleep(pause_sec)
        if forking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await forking
        else:
            await close(*forking.result())
    assert "alive" in await ask(parent, "echo alive\n")
    await parent.close()


@in_each_mode
async def test_a_copy_of_a_copy_goes_on_from_disk(task_dir: Path, tmp_path: Path, mode: ForkMode) -> None:
    parent, _ = await started(config_of(task_dir, mode), *LIVED)
    (child,) = await parent.fork(1, mode=mode)
    await ask(child, "x=7\n")
    (grandchild,) = await child.fork(1, mode=mode)
    assert "\n8\n" in await ask(grandchild, "f\n")
    (await grandchild.snapshot()).write(tmp_path / "snapshot.json")
    await close(parent, child, grandchild)
    config = TerminalEnvConfig.model_validate({"start_from": tmp_path / "snapshot.json"})
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
        assert (info["turn"], info.get("fork_mode")) == (6, "replay")
        assert "\n8\n" in await ask(env, "f\n")


@pytest.mark.docker
@pytest.mark.slow
async def test_a_docker_container_is_copied_by_replay(tmp_path: Path) -> None:
    require_engine("docker")
    await asyncio.to_thread(subprocess.run, [ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    parent, _ = await started(config_of(write_task(tmp_path / "copied"), sandbox="docker"), *LIVED[:2])
    copies = await parent.fork(2)
    await ask(copies[0], "echo first > file\n")
    assert "first" in await ask(copies[0], "cat file; f\n")
    for env in (parent, copies[1]):
        seen = await ask(env, "cat file; f\n")
        assert "kept\n42" in seen
    rewards = [(await env.finish()).reward for env in copies]
    assert rewards == [0.0, 0.0]
    await close(parent, *copies)
