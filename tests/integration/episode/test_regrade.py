"""``harbor-gym regrade``: stored episodes, graded by the verifiers of today."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from harbor_gym import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import Regraded, evaluate, format_regraded, regrade
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import write_task
from tests.integration.episode.test_play_on import SMALL, Script

local = pytest.mark.local
pytestmark = [pytest.mark.usefixtures("nothing_left")]
GRADES = '#!/bin/bash\nif [ "$(cat /srv/answer 2>/dev/null)" = {word} ]; then echo 1; else echo 0; fi > {to}\n'
TO = "/logs/verifier/reward.txt"


def task_of(folder: Path, word: str, *, instruction: str = "Write a word into /srv/answer.\n") -> Path:
    return write_task(folder / "words", test_sh=GRADES.format(word=word, to=TO), instruction=instruction)


async def play(task: Path, run: Path, *answers: str, max_tokens: int = 1000, **settings: object) -> None:
    config = TerminalEnvConfig(task_dir=task, sandbox="local", terminal=SMALL, **settings)  # pyright: ignore[reportArgumentType]
    player = Script(*answers).player(run)
    await evaluate([config], player, episodes=1)


@local
async def test_an_episode_gets_the_reward_of_the_verifier_of_today(tmp_path: Path) -> None:
    task, run = task_of(tmp_path, "old"), tmp_path / "run"
    await play(task, run, message("echo old > answer\n"), message("cat answer\n"), COMPLETE, COMPLETE)
    name = "test/batch_0000/words/episode_001"
    assert await regrade([run]) == [Regraded(run, name, "words", 1.0, 1.0)]
    shutil.copytree(task, tmp_path / "today/words")
    moved = task_of(tmp_path / "today", "new")
    (result,) = await regrade([run], tasks={"words": moved})
    assert (result.old, result.new, result.is_changed) == (1.0, 0.0, True)
    task_of(tmp_path, "new")  # where it was
    (result,) = await regrade([run])
    assert (result.new, result.is_changed) == (0.0, True)


@local
async def test_an_episode_that_a_limit_ended_ends_there_again(tmp_path: Path) -> None:
    task, run = task_of(tmp_path, "old"), tmp_path / "run"
    await play(task, run, message("echo new > answer\n"), message("true\n"), max_turns=2, copy_command="exit 3")
    task_of(tmp_path, "new")
    (result,) = await regrade([run])
    assert (result.old, result.new, result.error) == (0.0, 1.0, None)


@local
async def test_what_no_replay_repeats_is_not_graded(tmp_path: Path) -> None:
    task, run = task_of(tmp_path, "old"), tmp_path / "run"
    await play(task, run, message("echo $RANDOM$RANDOM\n"), COMPLETE, COMPLETE)
    (result,) = await regrade([run])
    assert (result.old, result.new) == (0.0, None)
    assert result.error is not None
    assert "turn 1 of the replay differs" in result.error
    task_of(tmp_path, "old", instruction="Write another word.\n")
    (result,) = await regrade([run])
    assert result.error is not None
    assert "Write another word." in result.error


@local
async def test_the_command_prints_what_changed(tmp_path: Path) -> None:
    task, run = task_of(tmp_path, "old"), tmp_path / "run"
    await play(task, run, message("echo old > answer\n"), COMPLETE, COMPLETE)
    assert (
        "1 of 1 episodes graded anew, 0 of them with another reward"
        in (await asyncio.to_thread(run_here, "regrade", run)).stdout
    )
    task_of(tmp_path, "new")
    result = await asyncio.to_thread(run_here, "regrade", run, "--json")
    (row,) = json.loads(result.stdout)
    assert (result.returncode, row["old"], row["new"], row["task"]) == (0, 1.0, 0.0, "words")
    shutil.rmtree(task)
    result = await asyncio.to_thread(run_here, "regrade", run)
    assert result.returncode == 1
    assert "words" in result.stdout


def test_a_folder_without_transcripts_is_named(tmp_path: Path) -> None:
    result = run_here("regrade", tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert str(tmp_path) in result.stderr


async def test_links_and_pipes_in_a_runs_folder_are_rows_and_not_opened(tmp_path: Path) -> None:
    task, run = task_of(tmp_path, "old"), tmp_path / "run/transcripts"
    run.mkdir(parents=True)
    (run / "link.json").symlink_to(task / "task.toml")
    os.mkfifo(run / "pipe.json")
    results = await regrade([tmp_path / "run"])
    assert [result.name for result in results] == ["link", "pipe"]
    assert all("can't be read" in (result.error or "") for result in results)


async def test_a_damaged_transcript_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir()
    (tmp_path / "transcripts/half.json").write_text('{"format": 2')
    (result,) = await regrade([tmp_path])
    assert (result.name, result.new) == ("half", None)
    assert result.error is not None
    with pytest.raises(UsageError, match="n_concurrent"):
        await regrade([tmp_path], n_concurrent=0)


def test_the_table_lists_what_changed_and_counts_the_rest() -> None:
    run = Path("run")
    same, other = Regraded(run, "one", "t", 1.0, 1.0), Regraded(run, "two", "t", 0.0, 1.0)
    results = [same, other, Regraded(run, "six", "t", 0.5, error="no")]
    *table, counts = format_regraded(results).splitlines()
    assert [line.split() for line in table] == [
        ["episode", "task", "old", "new", "why", "there", "is", "none"],
        ["two", "t", "0", "1"],
        ["six", "t", "0.5", "-", "no"],
    ]
    expected = "2 of 3 episodes graded anew, 1 of them with another reward; mean reward 1.000, before 0.500"
    assert counts == expected
    assert "one" in format_regraded(results, every=True)
