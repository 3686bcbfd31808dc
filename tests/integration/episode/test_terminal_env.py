"""AsyncTerminalGymEnv over the local sandbox: the whole episode, its budgets, and every way to go wrong."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym.errors import (
    HarborGymError,
    SandboxStartError,
    TaskError,
    UsageError,
)
from tests.helpers.sandboxes.terminal_environments import channel_processes
from tests.helpers.tasks import BASE, DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


def message(*keystrokes: str, complete: bool = False, duration: float = 30.0) -> str:
    commands = [{"keystrokes": keys, "duration": duration} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


def make_env(task_dir: Path, **settings: Any) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=task_dir, sandbox="local", **settings))


async def test_an_episode_is_rewarded_by_the_verifier_when_it_is_done(task_dir: Path) -> None:
    async with make_env(task_dir) as env:
        screen, info = await env.reset(seed=3)
        assert info.get("instruction") == "Write the word done into /srv/answer.\n"
        assert info.get("sandbox") == "local"
        assert "$" in screen or "#" in screen
        observation, reward, done, info = await env.step([("pwd\n", 30.0)])
        assert "/srv" in observation
        assert (reward, done) == (0.0, False)
        observation, reward, done, info = await env.step(message(DONE, complete=True))
        assert (reward, done) == (0.0, False)
        assert info.get("confirmation_pending")
        assert "confirm" in observation
        _, reward, done, info = await env.step(message(complete=True))
    assert (reward, done) == (1.0, True)
    assert info.get("end_reason") is EndReason.COMPLETED
    assert info.get("truncated") is False
    assert info.get("rewards") == {"reward": 1.0}
    assert info.get("trial_dir") is None
    assert info["metrics"]["time/verifier_sec"] > 0
    assert info["turn"] == 3


async def test_one_instance_runs_episodes_in_a_row(task_dir: Path) -> None:
    async with make_env(task_dir, confirm_task_complete=False) as env:
        rewards: list[float] = []
        for keys in ("true\n", DONE):
            await env.reset()
            rewards.append((await env.step(message(keys, complete=True)))[1])
    assert rewards == [0.0, 1.0], "a sandbox of a later episode must not know the earlier one"


async def test_a_turn_without_task_complete_withdraws_it(task_dir: Path) -> None:
    async with make_env(task_dir) as env:
        await env.reset()
        await env.step(message(complete=True))
        await env.step(message("true\n"))
        _, _, done, info = await env.step(message(complete=True))
        assert not done
        assert info.get("confirmation_pending")


async def test_the_turn_budget_truncates_and_verifies(task_dir: Path) -> None:
    async with make_env(task_dir, max_turns=1) as env:
        await env.reset()
        _, reward, done, info = await env.step([(DONE, 30.0)])
    assert (reward, done) == (1.0, True)
    assert info.get("end_reason") is EndReason.MAX_TURNS
    assert info.get("truncated") is True


async def test_the_time_limit_counts_the_terminal_only(task_dir: Path) -> None:
    async with make_env(task_dir, time_limit_sec=0.3) as env:
        await env.reset()
        await asyncio.sleep(0.5)
        assert env.remaining[1] == 1.0
        _, _, done, info = await env.step([("sleep 0.4\n", 30.0)])
    assert done
    assert info.get("end_reason") is EndReason.TIME_LIMIT


async def test_a_megabyte_of_keystrokes_is_typed_or_refused(task_dir: Path) -> None:
    async with make_env(task_dir) as env:
        await env.reset()
        lines = "".join(f": {'x' * 90} {n}\n" for n in range(10_000))
        observation, reward, done, info = await env.step([(lines, 30.0)])
        assert len(observation.encode()) <= env.config.terminal.max_observation_bytes
        assert (reward, done) == (0.0, False)
        keys = "echo still $((40 + 2))\n"
        while "still 42" not in observation:  # a busy machine's shell reads 10,000 lines for longer than a step
            observation, *_ = await env.step([(keys, 30.0)])
            keys = ""
    assert info["turn"] == 1


async def test_the_scalar_is_chosen_by_name(tmp_path: Path) -> None:
    both = '#!/bin/bash\necho \'{"speed":0.25,"reward":1}\' > /logs/verifier/reward.json\n'
    task_dir = write_task(tmp_path / "keys", test_sh=both)
    async with make_env(task_dir, confirm_task_complete=False, reward_key="speed") as env:
        await env.reset()
        _, reward, _, info = await env.step(message(complete=True))
    assert reward == 0.25
    assert info.get("rewards") == {"speed": 0.25, "reward": 1.0}


@pytest.mark.parametrize("missing", ["task.toml", "instruction.md", "environment", "tests"])
async def test_a_task_that_lacks_a_part_is_named(task_dir: Path, missing: str) -> None:
    path = task_dir / missing
    path.rename(task_dir.parent / "elsewhere")
    async with make_env(task_dir) as env:
        with pytest.raises(TaskError, match=missing.replace(".", r"\.")):
            await env.reset()


@pytest.mark.parametrize("toml", ["[agent]\ntimeout_sec = 'soon'\n", "= broken"])
async def test_a_broken_task_toml_is_named(tmp_path: Path, toml: str) -> None:
    async with make_env(write_task(tmp_path / "broken", toml=toml)) as env:
        with pytest.raises(TaskError):
            await env.reset()


async def test_a_dockerfile_that_fails_shows_the_builders_last_words(tmp_path: Path) -> None:
    dockerfile = f"FROM {BASE}\nRUN echo these are the last words >&2; exit 3\n"
    async with make_env(write_task(tmp_path / "unbuildable", dockerfile=dockerfile)) as env:
        with pytest.raises(SandboxStartError, match="these are the last words"):
            await env.reset()


async def test_calls_out_of_order_report_what_to_do(task_dir: Path) -> None:
    env = make_env(task_dir)
    with pytest.raises(UsageError, match="reset"):
        await env.step(message("true\n"))
    await env.reset()
    await env.close()
    await env.close()
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


async def test_close_while_it_starts(task_dir: Path) -> None:
    env = make_env(task_dir)
    reset = asyncio.create_task(env.reset())
    await asyncio.sleep(0.02)
    await env.close()
    with pytest.raises(HarborGymError):
        await reset


@pytest.mark.parametrize("suspensions", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144])
async def test_a_cancelled_episode_leaves_nothing(task_dir: Path, suspensions: int) -> None:
    """Cancel the episode at its n-th pass through the event loop."""

    async def episode() -> None:
        async with make_env(task_dir, confirm_task_complete=False) as env:
            await env.reset()
            await env.step(message(DONE))
            await env.step(message(complete=True))

    task = asyncio.create_task(episode())
    for _ in range(suspensions):
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() or task.exception() is None


async def test_eight_episodes_at_once(task_dir: Path) -> None:
    async def episode(index: int) -> float:
        async with make_env(task_dir, confirm_task_complete=False) as env:
            await env.reset()
            return (await env.step(message(DONE if index % 2 else "true\n", complete=True)))[1]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(episode(index)) for index in range(8)]
    assert [task.result() for task in tasks] == [0.0, 1.0] * 4


async def test_a_kept_trial_has_harbors_result(task_dir: Path, tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    async with make_env(task_dir, confirm_task_complete=False, trials_dir=trials) as env:
        await env.reset()
        *_, info = await env.step(message(DONE, complete=True))
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    result = json.loads((trial_dir / "result.json").read_text())
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}
    header, *events = map(json.loads, (trial_dir / "recording.cast").read_text().splitlines())
    assert (header["width"], header["height"]) == (160, 40)
    assert [text for _, kind, text in events if kind == "i"] == [DONE]


def write_two_steps(directory: Path) -> Path:
    task_dir = directory / "steps"
    write_task(task_dir, toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    (task_dir / "instruction.md").unlink()
    for name, word in (("one", "first"), ("two", "second")):
        step = task_dir / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text(f"Write {word} into /srv/{name}.\n")
        check = f"if grep -qx {word} /srv/{name}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
        (step / "tests" / "test.sh").write_text(f"#!/bin/bash\n{check}\n")
    return task_dir


async def test_processes_that_outlive_a_step_hold_nothing_of_this_machine(tmp_path: Path) -> None:
    task_dir = write_two_steps(tmp_path)
    async with make_env(task_dir, confirm_task_complete=False, keep_agent_processes=True) as env:
        await env.reset()
        await env.step(message("sleep 1008 &\n", complete=True))
        observation, *_ = await env.step(message("pgrep -c -f 'sleep 100[8]'\n"))
        assert "\n1\n" in observation
        assert len(channel_processes(os.getpid())) == 1


async def test_each_step_of_a_multi_step_task_brings_its_share_of_the_reward(tmp_path: Path) -> None:
    task_dir = write_two_steps(tmp_path)
    async with make_env(task_dir, confirm_task_complete=False, step_rewards=True) as env:
        _, info = await env.reset()
        assert info.get("instruction") == "Write first into /srv/one.\n"
        observation, reward, done, info = await env.step(message("echo first > /srv/one\n", complete=True))
        assert (reward, done) == (0.5, False)
        assert "Write second into /srv/two." in observation
        _, reward, done, info = await env.step(message("cat /srv/one\n", complete=True))
    assert (reward, done) == (0.0, True)
    assert info.get("episode_reward") == 0.5
