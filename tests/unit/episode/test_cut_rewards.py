"""A sandbox with nothing but Harbor's API does not transfer more of a reward file than its reader takes."""

import os
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, cast, override

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.episode.grading import cleanup
from harbor_gym.errors import VerifierError
from harbor_gym.sandboxes.archive.trees.records import MAX_REWARD_BYTES
from harbor_gym.testing import FakeEnvironment
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config
from tests.helpers.sandboxes.host_shell import HostShell

_HERE = "tests.unit.episode.test_cut_rewards:"


class LargeReward(FakeEnvironment):
    """A cloud whose verifier writes a large reward."""

    transferred: ClassVar[list[int]] = []

    @override
    def grade(self) -> None:
        self.files.write("/logs/verifier/reward.txt", b"0" * (3 * MAX_REWARD_BYTES))

    @override
    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        await super().download_dir(source_dir, target_dir)
        if source_dir == "/logs/verifier":
            self.transferred.append((Path(target_dir) / "reward.txt").stat().st_size)


async def test_a_large_reward_is_cut_before_its_transfer(tmp_path: Path) -> None:
    LargeReward.transferred.clear()
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task", sandbox=f"{_HERE}LargeReward")) as env:
        await env.reset()
        with pytest.raises(VerifierError, match="larger than 1 MiB"):
            await env.step(COMPLETE)
    assert LargeReward.transferred
    assert set(LargeReward.transferred) == {MAX_REWARD_BYTES + 1}


async def test_the_sandbox_cuts_what_a_link_leads_to_and_holes_too(tmp_path: Path) -> None:
    cut = MAX_REWARD_BYTES + 1
    directory = tmp_path / "a b"
    directory.mkdir()
    (directory / "reward.json").symlink_to("../large")
    for path in (tmp_path / "large", directory / "reward.txt", directory / "test-stdout.txt"):
        path.touch()
        os.truncate(path, 600 << 20)
    await cleanup.cut_rewards(cast("BaseEnvironment", HostShell()), PurePosixPath(directory))
    sizes = [path.stat().st_size for path in (tmp_path / "large", *sorted(directory.iterdir()))]
    assert sizes == [cut, cut, cut, 600 << 20]
    (directory / "reward.txt").write_text("1\n")
    (directory / "reward.json").unlink()
    os.mkfifo(directory / "reward.json")
    await cleanup.cut_rewards(cast("BaseEnvironment", HostShell()), PurePosixPath(directory))
    assert (directory / "reward.txt").read_text() == "1\n"
