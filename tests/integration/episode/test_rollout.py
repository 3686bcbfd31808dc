"""One episode from a sampler to a trajectory, without a training framework."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym.errors import TaskError, VerifierError
from harbor_gym.rollout import Sample, run_episode
from harbor_gym.tokens import TokenTerminalEnv
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


def token_env(task_dir: Path) -> TokenTerminalEnv:
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
    return TokenTerminalEnv(AsyncTerminalGymEnv(config), CharacterCodec(), max_tokens=1000)


async def solve(prompt: Sequence[int]) -> Sample:
    """Solve the task in the second turn."""
    asked = list(prompt).count(ASK)
    commands = [{"keystrokes": DONE if asked == 2 else "true\n", "duration": 30.0}]
    text = json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": asked == 2})
    return Sample([*map(ord, text), END], [0.0] * (len(text) + 1))


async def test_a_rollout_holds_what_was_sampled_and_what_it_earned(task_dir: Path) -> None:
    rollout = await run_episode(token_env(task_dir), solve)
    assert rollout.reward == 1.0
    assert rollout.end_reason is EndReason.COMPLETED
    first, second = rollout.transitions
    assert list(second.prompt)[: len(first.prompt) + len(first.sample.tokens)] == [*first.prompt, *first.sample.tokens]
    assert [transition.reward for transition in rollout.transitions] == [0.0, 1.0]


async def test_an_infrastructure_failure_has_no_reward(tmp_path: Path) -> None:
    rollout = await run_episode(token_env(write_task(tmp_path / "mute", test_sh="#!/bin/bash\n")), solve)
    assert rollout.end_reason is EndReason.INFRASTRUCTURE_ERROR
    assert rollout.reward is None
    assert isinstance(rollout.error, VerifierError)
    assert len(rollout.transitions) == 1, "the turn that failed is not a transition"


async def test_a_wrong_task_raises(tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        await run_episode(token_env(tmp_path), solve)


async def test_the_samplers_error_closes_the_environment(task_dir: Path) -> None:
    async def broken(prompt: Sequence[int]) -> Sample:
        raise RuntimeError("no server")

    with pytest.raises(RuntimeError, match="no server"):
        await run_episode(token_env(task_dir), broken)
