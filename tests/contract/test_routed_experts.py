"""Routed experts of a sampler: in our own loop's sequences, and refused by name where a door has no place for them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbor_gym import AsyncTerminalGymEnv, Sample, TokenTerminalEnv, merge, run_episode
from harbor_gym.adapters.verl.sampler import ServerSampler
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.transcripts import read_routed_experts, read_transcript, transitions_of, write_transcript
from harbor_gym.types import RoutedExperts, Sampler
from tests.contract.players.episode import Episode
from tests.contract.test_same_episode import ADAPTERS, SOLVED, THOUGHTFUL, Script
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED_WHEN = {"solved_when": {"/srv/answer": "done"}}


class Routing:
    """Answers as a script does; a token's route is its place and the length of the prompt that it was sampled after."""

    def __init__(self, script: Sampler) -> None:
        self._script = script

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        sample = await self._script(prompt)
        rows = len(prompt) + len(sample.tokens) - 1
        experts = np.stack([np.arange(rows), np.full(rows, len(prompt))], axis=1).reshape(rows, 1, 2)
        return replace(sample, routed_experts=RoutedExperts(0, experts))


CARRYING = (
    "run_episode",
    *(pytest.param(name, marks=pytest.mark.tinker) for name in ("nemo-gym", "nemo-gym-agent")),
    pytest.param("nemo-gym-server", marks=pytest.mark.nemo_gym),
)
"""The doors whose sequences are read here; SkyRL's are read in its own tests."""


@pytest.mark.parametrize("script", [SOLVED, Script(THOUGHTFUL)], ids=["plain", "thinking"])
@pytest.mark.parametrize("adapter", CARRYING)
async def test_every_sampled_token_has_its_own_route(
    adapter: str, script: Script, model_dir: str, tmp_path: Path
) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, Routing(script), FAKE, SOLVED_WHEN)
    played = await ADAPTERS[adapter](episode)
    sequences = [played.sequence] if played.sequence is not None else played.sequences
    for sequence in sequences:
        assert sequence is not None
        assert sequence.routed_experts is not None
        routes = sequence.routed_experts.experts[:, 0]
        assert routes[:, 0].tolist() == [*range(len(sequence.token_ids) - 1)]
        for span in sequence.spans:
            first, last = len(sequence.prompt) + span.start, len(sequence.prompt) + span.end
            assert set(routes[first - 1 : last - 1, 1].tolist()) == {first}, "sampled after the prompt before it"


async def test_a_transcript_has_them_in_a_file_beside_it(tmp_path: Path) -> None:
    answers = iter((message("true\n"), COMPLETE))

    async def answer(prompt: Sequence[int]) -> Sample:
        return Sample([*map(ord, next(answers))])

    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), CharacterCodec(), max_tokens=1000)
    rollout = await run_episode(env, Routing(answer))
    path = tmp_path / "run/episode_001.json"
    write_transcript(path, rollout.transcript, labels={})
    transcript, document = read_transcript(path)
    assert document["routed_experts"] == "episode_001.experts.npz"
    whole = read_routed_experts(path, transcript)
    first, second = (turn.routed_experts for turn in whole.turns)
    assert first is not None
    assert second is not None
    assert (first.start, second.start) == (0, first.end), "each turn keeps what is new"
    (sequence,), (expected,) = (merge(transitions_of(whole.turns, whole.tokens or ())), merge(rollout.transitions))
    assert sequence.routed_experts is not None
    assert expected.routed_experts is not None
    assert sequence.token_ids == expected.token_ids
    assert (sequence.routed_experts.experts == expected.routed_experts.experts).all()
    path.with_suffix(".experts.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match="copy both files"):
        read_routed_experts(path, transcript)
    assert read_transcript(path)[0].turns[1].action == COMPLETE


@pytest.mark.tinker
@pytest.mark.parametrize("adapter", ["harbor-gateway", "trl-async", "trl-async-agent"])
async def test_a_door_without_a_place_says_so(adapter: str, model_dir: str, tmp_path: Path) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, Routing(SOLVED), FAKE, SOLVED_WHEN)
    with pytest.raises(HarborGymError, match="routed experts: let the sampler ask for none"):
        await ADAPTERS[adapter](episode)


async def test_verls_servers_are_asked_for_none() -> None:
    class Servers:
        async def generate(self, request_id: str, **request: Any) -> Any:
            class Output:
                stop_reason, routed_experts, num_preempted = "stop", [[[1]]], None

            return Output()

    sampler = ServerSampler(Servers(), {}, "one", 0, (), 100, 100, 10)
    with pytest.raises(UsageError, match="turn its routing replay off"):
        await sampler([1, 2])
