"""A vector environment over fakes: sub-environments that can't start are told apart from the others."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, override

import gymnasium as gym
import numpy as np
import pytest

import harbor_gym
from harbor_gym.adapters.gymnasium import HarborTerminalVectorEnv
from harbor_gym.errors import SandboxStartError
from harbor_gym.testing import FakeEnvironment, write_tiny_task

gym.register_envs(harbor_gym)


class Refusing(FakeEnvironment):
    """A fake of which the next so many do not start."""

    refusals: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        if Refusing.refusals:
            Refusing.refusals -= 1
            raise SandboxStartError("no room")
        await super().start(force_build)


@pytest.fixture
def envs(tmp_path: Path) -> Iterator[HarborTerminalVectorEnv]:
    make = functools.partial(gym.make_vec, "HarborTerminal-v0", num_envs=3, confirm_task_complete=False)
    envs: Any = make(task_dir=write_tiny_task(tmp_path / "task"), sandbox=f"{__name__}:Refusing")
    Refusing.refusals = 0
    yield envs
    envs.close()


@pytest.mark.parametrize("refusals", [1, 2])
def test_one_that_can_not_start_does_not_take_the_others_reset(envs: HarborTerminalVectorEnv, refusals: int) -> None:
    Refusing.refusals = refusals
    observations, infos = envs.reset()
    failed = infos["_infrastructure_error"]
    assert failed.sum() == refusals
    assert all(isinstance(error, SandboxStartError) for error in infos["infrastructure_error"][failed])
    assert [bool(text) for text in observations] == [not lost for lost in failed]
    _, rewards, terminated, truncated, infos = envs.step(["<task_complete/>"] * 3)
    assert rewards.tolist() == terminated.tolist() == [not lost for lost in failed], "the others go on"
    assert not truncated.any()
    assert infos["_instruction"].tolist() == failed.tolist(), "the next step resets who failed"


def test_where_none_can_start_the_first_error_is_raised(envs: HarborTerminalVectorEnv) -> None:
    Refusing.refusals = 3
    with pytest.raises(SandboxStartError, match="no room"):
        envs.reset()
    observations, _ = envs.reset()
    assert all(observations)
    Refusing.refusals = 1
    with pytest.raises(SandboxStartError, match="no room"):
        envs.reset(options={"reset_mask": np.array([False, True, False])})
