"""One failure, any trainer: no reward, another episode where retries are left; a refused key ends the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym import EndReason, Sample
from harbor_gym.errors import HarborGymError, SamplerError
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import StopReason
from tests.contract.differences import NEMO_GYM, doors
from tests.contract.players.episode import Episode, Failing, Losing, Played, by_run_episode
from tests.contract.test_same_episode import ADAPTERS, SOLVED, adapters
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED_WHEN = {"solved_when": {"/srv/answer": "done"}}

LOST: Mapping[str, tuple[Mapping[str, int], str]] = {
    "at its start": ({"start": 1}, "sandbox_start"),
    "in its second turn": ({"exec": 2}, "sandbox_lost"),
    "when it is graded": ({"verifier": 1}, "verifier_error"),
}
"""The failure of the sandbox, and its name."""

FAILURES: Mapping[str, Exception | Sample] = {
    "is gone": SamplerError("the engine is gone"),
    "does not answer in time": TimeoutError("no answer"),
    "aborts": Sample([65], [-0.5], cast(StopReason, "abort")),
    "leaves out a log-probability": Sample([65, 66], [-0.5]),
}
"""What the engine does instead of an answer."""

SAMPLERS = frozenset({"run_episode", "harbor-env", "openenv-server", "trl-async"})
"""Doors whose engine is always behind a sampler of ours, which raises nothing but its ``SamplerError``."""

OWN_ENGINES = frozenset(
    door for name in ("a refusal of the engine", "a key that is refused", "limits in tokens") for door in doors(name)
)
"""Doors where the trainer asks its own engine, or the loop around them does."""

COOKBOOK = frozenset({"tinker", "tinker-agent"})
"""Their retries are the strategy's: tests/integration/adapters/test_tinker_failures.py."""


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("adapter", adapters())
async def test_a_lost_sandbox_is_no_reward(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    fail, kind = LOST[name]
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, FAKE, {**SOLVED_WHEN, "fail": fail})
    assert await ADAPTERS[adapter](episode) == Played(None, EndReason.INFRASTRUCTURE_ERROR, kind)


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("adapter", adapters(but=OWN_ENGINES))
async def test_an_engine_that_fails_is_no_answer(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    if (name == "does not answer in time" and adapter in SAMPLERS) or (name == "aborts" and adapter in NEMO_GYM):
        return  # NeMo Gym's model server has no word for an aborted answer
    sampler = Failing(SOLVED, FAILURES[name])
    episode = Episode(write_task(tmp_path / "task"), model_dir, sampler, FAKE, SOLVED_WHEN)
    assert await ADAPTERS[adapter](episode) == Played(None, EndReason.INFRASTRUCTURE_ERROR, "sampler_error")


@pytest.mark.parametrize("whose", ["engine", "sandbox"])
@pytest.mark.parametrize("adapter", adapters(but={*COOKBOOK, *doors("limits in tokens")}))
async def test_a_lost_episode_runs_again(adapter: str, whose: str, model_dir: str, tmp_path: Path) -> None:
    if whose == "engine" and adapter in OWN_ENGINES:
        return
    sampler: Any = Failing(SOLVED, FAILURES["is gone"], times=1) if whose == "engine" else SOLVED
    sandbox, options = "tests.contract.players.episode:Losing", {**SOLVED_WHEN, "point": "exec"}
    episode = Episode(write_task(tmp_path / "task"), model_dir, sampler, sandbox, options, max_retries=1)
    Losing.left = int(whose == "sandbox")
    played = await ADAPTERS[adapter](episode)
    assert played == Played(1.0, EndReason.COMPLETED)
    assert played.trained == (await by_run_episode(episode)).trained
    Losing.left = 1000
    lost = await ADAPTERS[adapter](episode)
    assert lost == Played(None, EndReason.INFRASTRUCTURE_ERROR, "sandbox_lost")
    assert 1000 - Losing.left in (2, 4), "TRL plays a group of two side by side"


class Keyless:
    """A sampler over an engine that refuses the key."""

    asked = 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        type(self).asked += 1
        raise EngineSettingsError("set the key that it expects")


@pytest.mark.parametrize("adapter", adapters(but=doors("a key that is refused")))
async def test_a_refused_key_ends_the_run(adapter: str, model_dir: str, tmp_path: Path) -> None:
    """It is asked for once, and is never a lost episode that is played again."""
    Keyless.asked = 0
    episode = Episode(write_task(tmp_path / "task"), model_dir, Keyless(), FAKE, {})
    try:
        how = (await ADAPTERS[adapter](episode)).failure_kind
    except HarborGymError as exc:
        how = str(exc)
    assert how is not None
    assert "set the key" in how
    assert Keyless.asked in (1, 2), "TRL plays a group of two side by side"
