"""One refused key, any trainer: asked for once, and never a lost episode that is played again."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from harbor_gym import Sample
from harbor_gym.errors import HarborGymError
from harbor_gym.samplers import EngineSettingsError
from tests.contract.differences import doors
from tests.contract.players.episode import Episode
from tests.contract.test_same_episode import ADAPTERS, adapters
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.usefixtures("nothing_left")


class Keyless:
    """A sampler over an engine that refuses the key."""

    asked = 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        type(self).asked += 1
        raise EngineSettingsError("set the key that it expects")


@pytest.mark.parametrize("adapter", adapters(but=doors("a key that is refused")))
async def test_a_refused_key_ends_the_run(adapter: str, model_dir: str, tmp_path: Path) -> None:
    Keyless.asked = 0
    episode = Episode(write_task(tmp_path / "task"), model_dir, Keyless(), "harbor_gym.testing:FakeEnvironment", {})
    try:
        how = (await ADAPTERS[adapter](episode)).failure_kind
    except (HarborGymError, ValueError) as exc:
        how = str(exc)
    assert how is not None
    assert "set the key" in how
    assert Keyless.asked in (1, 2), "TRL plays a group of two side by side"
