"""Nothing of an ended episode stays in memory."""

import gc
from pathlib import Path

import pytest
from harbor.trial.trial import Trial

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.episode import Episode
from tests.helpers.sandboxes.fake_episodes import fake_config

pytestmark = pytest.mark.usefixtures("nothing_left")


def alive() -> set[int]:
    gc.collect()
    return {id(item) for item in gc.get_objects() if issubclass(type(item), Episode | Trial)}


async def test_an_ended_episode_is_garbage(tmp_path: Path) -> None:
    before = alive()
    for _ in range(3):
        async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
            await env.reset()
            await env.step([("echo hello\n", 1.0)])
            await env.finish()
        del env
    assert alive() - before == set()
