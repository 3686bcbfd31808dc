"""Episodes that begin in the middle of earlier ones, drawn from a folder of transcripts."""

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.starts import Starts, level_of
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import Transcript, Turn
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

TURNS = 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with six episodes, the first half solved; the last one has a turn less."""
    folder = tmp_path_factory.mktemp("recorded")
    config = fake_config(folder / "task", solved_when={"/srv/a": "done"})
    first = "echo 1 > b\n"
    kinds = [([first] * (TURNS - 2), "done"), ([first] * (TURNS - 2), "1"), ([first] * (TURNS - 3), "1")]
    solved, failed, shorter = [asyncio.run(played(config, [*keys, f"echo {word} > a\n"])) for keys, word in kinds]
    for number, transcript in enumerate([solved, solved, solved, failed, failed, shorter]):
        labels = {"task": "task", "group": f"train/batch_0001/group_{number}", "episode": 1}
        path = folder / f"run/transcripts/train/batch_0001/group_{number}/episode_001.json"
        write_transcript(path, transcript, labels=labels)
    return folder / "run"


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return shutil.copytree(recorded, tmp_path / "run")


async def played(config: TerminalEnvConfig, keys: list[str]) -> Transcript:
    transcript = Transcript()
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        start = await env.snapshot()
        transcript.start_info, shown = start.start_info, start.observation
        transcript.settings = start.transcript.settings
        for action in (*map(message, keys), COMPLETE):
            result = await env.step(action)
            transcript.turns.append(Turn(shown, action, result.info, result.reward, 0, 0))
            shown = result.observation
    transcript.final_observation = shown
    return transcript


def starting(run: Path, folder: str = ".", **settings: Any) -> TerminalEnvConfig:
    return TerminalEnvConfig.model_validate({"start_from": run / folder, **settings})


def drawn(config: TerminalEnvConfig, key: str = "key", **settings: Any) -> TerminalEnvConfig:
    starts = Starts.read(config, in_tokens=False)
    assert starts is not None
    return starts.draw(config, key, **settings)


@pytest.mark.parametrize("folder", [".", "transcripts", "transcripts/train/batch_0001"])
async def test_an_episode_draws_one_transcript_and_goes_on_from_it(folder: str, run: Path) -> None:
    config = starting(run, folder, start_where=["reward=1"])
    assert config.sandbox == "harbor_gym.testing:FakeEnvironment", "the transcripts' own"
    starts = Starts.read(config, in_tokens=False)
    assert starts is not None
    draws = [starts.draw(config, f"train/batch_0001/group_{number}") for number in range(20)]
    again = [starts.draw(config, f"train/batch_0001/group_{number}") for number in range(20)]
    assert draws == again, "the same seed and group"
    found = {item.start_from.parent.name for item in draws if isinstance(item.start_from, Path)}
    assert found == {"group_0", "group_1", "group_2"}, "those that were solved"
    async with AsyncTerminalGymEnv(draws[0]) as env:
        _, info = await env.reset()
        assert (info["turn"], info.get("fork_mode")) == (TURNS - 1, "replay")
        assert (await env.step(COMPLETE)).reward == 1.0


@pytest.mark.parametrize(
    ("rule", "level", "turns"),
    [
        (None, 0, {3}),
        (1, 0, {1}),
        ("2", 0, {2}),
        ("mid", 0, {1}),
        ("uniform", 0, {0, 1, 2, 3}),
        ("backward", 0, {3}),
        ("backward", 2, {1}),
        ("backward", 9, {0}),
    ],
)
async def test_a_turn_is_chosen_by_its_rule(rule: Any, level: int, turns: set[int], run: Path) -> None:
    config = starting(run, start_turn=rule, start_where=["reward=1"])
    found = {drawn(config, f"group_{number}", level=level).start_turn for number in range(20)}
    assert found == turns


async def test_a_transcript_begins_after_the_turn_of_its_number(run: Path) -> None:
    config = starting(run, "transcripts/train/batch_0001/group_0/episode_001.json", start_turn=1)
    assert Starts.read(config, in_tokens=False) is None, "nothing is left to draw"
    async with AsyncTerminalGymEnv(config) as env:
        assert (await env.reset())[1]["turn"] == 1
        (copy,) = await env.fork(1)
        await env.step(message("true\n"))
        (later,) = await env.fork(1)
        for fork, turn in ((copy, 1), (later, 2)):
            async with fork:
                assert (await fork.reset())[1]["turn"] == turn, "of its own, not the start's"
    with pytest.raises(UsageError, match=r"episode_001\.json: there is no turn 9: it is 0 \(after reset\) to 3"):
        await AsyncTerminalGymEnv(config.model_copy(update={"start_turn": 9})).reset()


async def test_a_budget_leaves_a_turn_to_play(run: Path) -> None:
    assert drawn(starting(run, max_turns=3)).start_turn == 2
    with pytest.raises(UsageError, match="after turn 3 and max_turns leaves 2"):
        drawn(starting(run, max_turns=3, start_turn=3))


async def test_what_is_no_transcript_is_skipped_and_counted(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = run / "transcripts/train/batch_0001"
    damaged = folder / "group_0/episode_001.json"
    damaged.write_text(damaged.read_text()[:200])
    other = folder / "group_1/episode_001.json"
    document = json.loads(other.read_text())
    document["settings"]["terminal"]["columns"] = 100
    other.write_text(json.dumps(document))
    agents = folder / "group_2/episode_001.json"
    agents.write_text(json.dumps({**json.loads(agents.read_text()), "settings": None}))
    os.mkfifo(folder / "a.json")
    config = starting(run, "transcripts/train/batch_0001", terminal={})
    with caplog.at_level(logging.WARNING):
        starts = Starts.read(config, in_tokens=False)
    assert starts is not None
    froms = {starts.draw(config, str(number)).start_from for number in range(20)}
    assert {item.parent.name for item in froms if isinstance(item, Path)} == {"group_3", "group_4", "group_5"}
    assert "4 of 7 transcripts" in caplog.text


async def test_a_policy_in_tokens_begins_where_tokens_are_known(run: Path) -> None:
    with pytest.raises(UsageError, match=r"episode_001\.json has no tokens: a policy in text played it$"):
        Starts.read(starting(run), in_tokens=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"start_where": ["reward=0.5"]}, "6 of 6 do not meet reward=0.5"),
        ({"start_where": ["colour=red"]}, "episodes have no colour; they have task, split"),
        ({"start_where": ["reward"]}, "is no condition"),
        ({"start_turn": 4}, "start_turn: 4 is beyond the end: the longest transcript of task .* after turn 3$"),
        ({"task_dir": "task:devops_task"}, "no transcript in .* is of the task devops_task"),
    ],
)
async def test_a_draw_that_can_not_be_is_one_sentence(settings: dict[str, Any], expected: str, run: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        drawn(starting(run, **settings))


def test_a_folder_without_transcripts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValidationError, match="empty has no transcript of our own loop: give a run"):
        TerminalEnvConfig(task_dir=tmp_path, start_from=tmp_path / "empty")


@pytest.mark.parametrize("settings", [{"start_turn": 3}, {"start_where": ("reward=1",)}])
def test_a_choice_needs_transcripts(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give their folder as start_from"):
        TerminalEnvConfig.model_validate({"task_dir": tmp_path, **settings})


@pytest.mark.parametrize("settings", [{}, {"start_turn": "mid"}])
async def test_a_door_that_draws_nothing_refuses_a_folder(settings: dict[str, Any], run: Path) -> None:
    with pytest.raises(UsageError, match=r"only train, sweep, eval and harbor_gym\.starts\.Starts draw one"):
        await AsyncTerminalGymEnv(starting(run, **settings)).reset()


def test_backward_begins_a_turn_earlier_after_each_batch_that_earned_enough(tmp_path: Path) -> None:
    rewards = [0.1, 0.5, 0.4, 1.0, 1.0]
    records = [{"step": step, "env/all/reward/total": reward} for step, reward in enumerate(rewards)]
    records[3] |= {"env/task/reward/total": 0.2}
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert [level_of(tmp_path, "task", before=batch) for batch in range(6)] == [0, 0, 1, 1, 1, 2]
    assert level_of(tmp_path / "none", "task", before=3) == 0
