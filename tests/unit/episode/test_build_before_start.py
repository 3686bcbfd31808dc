"""Images are built before Harbor's clock of a sandbox's start: a wait for other builds does not use up its limit."""

import asyncio
from pathlib import Path
from typing import override

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.checking import CheckPlan
from harbor_gym.checking.trials import run_plain_oracle
from harbor_gym.errors import SandboxStartError, SandboxThrottledError
from harbor_gym.sandboxes import environment_config
from harbor_gym.testing import FakeEnvironment
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.helpers.tasks import write_task

_HERE = "tests.unit.episode.test_build_before_start:"
_BUILD_SEC = 1.5


class SlowlyBuilt(FakeEnvironment):
    """Takes longer for its image than Harbor's clock allows a start."""

    is_built = False

    async def build_image(self, *, force_build: bool) -> None:
        assert not force_build
        await asyncio.sleep(_BUILD_SEC)
        self.is_built = True

    @override
    async def start(self, force_build: bool) -> None:
        assert self.is_built
        await super().start(force_build)


class Unbuilt(FakeEnvironment):
    """Has no image."""

    async def build_image(self, *, force_build: bool) -> None:
        raise SandboxStartError("the Dockerfile fails at line 2")


class ThrottledBuild(FakeEnvironment):
    """Is refused by its builder."""

    async def build_image(self, *, force_build: bool) -> None:
        raise SandboxThrottledError("too many builds", 7.5)


async def test_a_build_does_not_count_for_the_limit_of_the_start(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", sandbox=f"{_HERE}SlowlyBuilt")
    with (tmp_path / "task/task.toml").open("a") as file:
        file.write("[environment]\nbuild_timeout_sec = 1.0\n")
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
    assert info["metrics"]["time/sandbox_start_sec"] >= _BUILD_SEC


async def test_a_build_does_not_count_for_the_limit_of_a_plain_trials_start_either(tmp_path: Path) -> None:
    toml = "[environment]\nbuild_timeout_sec = 1.0\n"
    task = write_task(tmp_path / "task", toml=toml)
    plan = CheckPlan(environment_config(f"{_HERE}SlowlyBuilt"), tmp_path / "trials")
    await run_plain_oracle(task, plan)


async def test_a_failed_build_is_the_starts_failure(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "one", sandbox=f"{_HERE}Unbuilt")) as env:
        with pytest.raises(SandboxStartError, match="the Dockerfile fails at line 2"):
            await env.reset()
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "two", sandbox=f"{_HERE}ThrottledBuild")) as env:
        with pytest.raises(SandboxThrottledError) as caught:
            await env.reset()
    assert caught.value.retry_after_sec == 7.5
