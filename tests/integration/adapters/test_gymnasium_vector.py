"""gym.make_vec over local sandboxes: all step at once, each ends and fails by itself."""

from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import harbor_gym
from harbor_gym.adapters.gymnasium import HarborTerminalEnv, HarborTerminalVectorEnv
from harbor_gym.errors import SandboxStartError, UsageError, VerifierError
from tests.benchmarks.vector import bench_vector
from tests.helpers.engines import require_engine
from tests.helpers.tasks import DONE, write_task

gym.register_envs(harbor_gym)

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("local_engine", "nothing_left")]

COMPLETE = "<task_complete/>"
SETTINGS: dict[str, Any] = {"sandbox": "local", "confirm_task_complete": False}
VERDICT_UNLESS_BROKEN = """\
#!/bin/bash
[ -e /srv/broken ] && exit 0
if [ "$(cat /srv/answer 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module", autouse=True)
def local_engine() -> None:
    require_engine("local")
    resource_tracker.ensure_running()  # the spawn method's; it lives as long as this process


@pytest.fixture
def fragile(tmp_path: Path) -> Path:
    """A task with a verifier that gives no verdict once /srv/broken is there."""
    return write_task(tmp_path / "fragile", test_sh=VERDICT_UNLESS_BROKEN)


def make(task_dir: Path, num_envs: int, **settings: Any) -> HarborTerminalVectorEnv:
    envs = gym.make_vec("HarborTerminal-v0", num_envs=num_envs, task_dir=task_dir, **{**SETTINGS, **settings})
    assert isinstance(envs, HarborTerminalVectorEnv)
    return envs


def test_all_step_in_one_call_and_reset_in_the_next_step(task_dir: Path) -> None:
    envs = make(task_dir, 3, observation="dict", render_mode="ansi", max_episode_steps=3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, infos = envs.reset(seed=5)
    assert envs.observation_space.contains(observations)
    assert infos["seed"].tolist() == [5, 6, 7]
    observations, rewards, terminated, truncated, infos = envs.step([DONE, "exit\n", "(exit 3)\n"])
    assert envs.observation_space.contains(observations)
    assert observations["exit_code"].tolist()[2] == 3
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0, 0, 0], [False, True, False], [False] * 3)
    assert infos["end_reason"].tolist() == [None, "session_ended", None]
    screens = envs.render()
    assert screens is not None
    assert "echo done" in str(screens[0])
    observations, rewards, terminated, _, infos = envs.step([COMPLETE, "not typed\n", "true\n"])
    assert (rewards.tolist(), terminated.tolist()) == ([1, 0, 0], [True, False, False])
    assert infos["_instruction"].tolist() == [False, True, False], "the second one was reset"
    assert "not typed" not in observations["output"][1]
    _, rewards, terminated, truncated, _ = envs.step([COMPLETE, COMPLETE, "true\n"])
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
        [0, 0, 0],
        [False, True, False],
        [False, False, True],
    )
    envs.close()
    envs.close()
    with pytest.raises(UsageError, match="closed"):
        envs.reset()


def test_the_commands_of_one_step_run_at_the_same_time(task_dir: Path) -> None:
    envs = make(task_dir, 4)
    envs.reset()
    observations, *_ = envs.step(["date +from-%s%N; sleep 2; date +to-%s%N\n"] * 4)
    begun, ended = (
        [int(line.removeprefix(mark)) for text in observations for line in text.splitlines() if line.startswith(mark)]
        for mark in ("from-", "to-")
    )
    assert len(begun) == len(ended) == 4
    assert max(begun) < min(ended)
    envs.close()


def test_same_step_returns_the_next_episode_and_the_final_one_beside_it(task_dir: Path) -> None:
    envs = make(task_dir, 2, autoreset_mode="SameStep")
    envs.reset()
    infos = envs.step([DONE, "unfinished"])[4]
    assert infos["_exit_code"].tolist() == [True, False]
    observations, rewards, terminated, _, infos = envs.step([f"echo last\n{COMPLETE}", "true\n"])
    assert (rewards.tolist(), terminated.tolist()) == ([1, 0], [True, False])
    assert "last" in infos["final_obs"][0]
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_info"]["end_reason"][0] == "completed"
    assert "last" not in observations[0]
    assert infos["turn"].tolist() == [0, 2]
    envs.close()


def test_disabled_resets_only_what_the_mask_selects(task_dir: Path) -> None:
    envs = make(task_dir, 2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset()
    envs.step([COMPLETE, "echo kept\n"])
    with pytest.raises(UsageError, match=r"\[0\] need a reset"):
        envs.step(["true\n", "true\n"])
    observations, infos = envs.reset(seed=[3, None], options={"reset_mask": np.array([True, False])})
    assert "kept" in observations[1]
    assert infos["_turn"].tolist() == [True, False]
    assert envs.step(["true\n", "true\n"])[4]["turn"].tolist() == [1, 2]
    with pytest.raises(UsageError, match="2 booleans"):
        envs.reset(options={"reset_mask": [True, False]})
    envs.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_failure_of_the_infrastructure_stays_with_the_one_that_failed(fragile: Path, mode: str) -> None:
    envs = make(fragile, 3, autoreset_mode=mode, ambiguous_failures="infrastructure")
    envs.reset()
    envs.step([DONE, "touch /srv/broken\n", "echo untouched\n"])
    observations, rewards, terminated, truncated, infos = envs.step([COMPLETE, COMPLETE, "echo on\n"])
    assert (rewards[0], rewards[2], terminated.tolist()) == (1.0, 0.0, [True, False, False])
    assert np.isnan(rewards[1])
    assert truncated.tolist() == [False, True, False]
    assert infos["_infrastructure_error"].tolist() == [False, True, False]
    assert isinstance(infos["infrastructure_error"][1], VerifierError)
    assert "on" in observations[2].splitlines()
    assert envs.observation_space.contains(observations)
    _, rewards, _, _, infos = envs.step(["true\n", "true\n", DONE])
    assert rewards.tolist() == [0, 0, 0]
    assert "infrastructure_error" not in infos
    assert infos["turn"].tolist() == ([0, 0, 3] if mode == "NextStep" else [1, 1, 3])
    envs.close()


def test_where_none_can_start_the_error_is_raised(tmp_path: Path) -> None:
    envs = make(write_task(tmp_path / "task", dockerfile="FROM debian:bookworm-slim\nRUN exit 7\n"), 2)
    with pytest.raises(SandboxStartError):
        envs.reset()
    envs.close()


def test_a_mistake_is_reported_before_anything_is_typed(task_dir: Path) -> None:
    envs = make(task_dir, 2)
    envs.reset()
    for actions in ("ls", ["true\n"], ["echo typed\n", 3]):
        with pytest.raises(UsageError, match="action"):
            envs.step(actions)
    observations, *_ = envs.step(["true\n", "true\n"])
    assert "typed" not in observations[0]
    envs.close()


def test_gymnasiums_own_vector_environments_hold_ours(task_dir: Path) -> None:
    def make_one() -> gym.Env[Any, Any]:
        return HarborTerminalEnv(task_dir, observation="dict", **SETTINGS)

    for envs in (SyncVectorEnv([make_one, make_one]), AsyncVectorEnv([make_one, make_one], context="spawn")):
        observations, _ = envs.reset(seed=1)
        assert envs.observation_space.contains(observations)
        observations, *_ = envs.step(("echo 一😀\n", "(exit 4)\n"))
        assert "\n一😀\n" in observations["output"][0]
        assert observations["exit_code"].tolist() == [0, 4]
        envs.close()


def test_the_benchmark_counts_right() -> None:
    report = bench_vector("local", num_envs=2, repeat=1)
    assert report.is_right
    assert report.sleep_all_ms >= 300
    assert report.ls_share > 0
    assert report.as_object()["num_envs"] == 2
