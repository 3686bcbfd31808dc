"""``harbor-gym play --from``: a person goes on with an episode in their own terminal."""

import asyncio
import contextlib
import shlex
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, Sample, TerminalConfig, TerminalEnvConfig
from harbor_gym.evaluation import Player, evaluate
from harbor_gym.report.viewer import Viewer
from tests.helpers.browser import browser
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.copies import config_of
from tests.helpers.keyboard import KeyboardUser
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

TASK = ROOT / "tasks" / "devops_task"
SMALL = TerminalConfig(columns=90, rows=25)

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@contextlib.contextmanager
def playing(*words: str) -> Generator[KeyboardUser]:
    """Yield a person who plays on, and at the end hands in."""
    player = KeyboardUser([sys.executable, "-m", "harbor_gym", "play", *words])
    player.wait_for("Enter starts")
    player.type("\r")
    yield player
    assert player.end() == 0


class Script:
    """A policy in tokens that answers from a list, and thinks without end where there is no answer."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.is_thinking = asyncio.Event()

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        turn = list(prompt).count(ASK) - 1
        if turn == len(self._answers):
            self.is_thinking.set()
            await asyncio.Event().wait()
        return Sample([*map(ord, self._answers[turn]), END])

    def player(self, run: Path) -> Player:
        return Player(codec=CharacterCodec(), sample=self, max_tokens=1000, transcripts_dir=run / "transcripts")


async def test_a_person_goes_on_from_a_turn_of_an_episode(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=TASK, terminal=SMALL)) as env:
        await env.reset()
        for keys in ("word=kept; cd /opt\n", "cd /usr; word=gone\n"):
            await env.step(message(keys))
        (await env.snapshot()).write(tmp_path / "run/transcripts/test/episode_001.json")
    with playing("--from", str(tmp_path / "run/test/episode_001"), "--turn", "1") as player:
        player.wait_for("root@sandbox:/opt#")
        player.type("echo $word-$PWD\r")
        player.wait_for("kept-/opt")
        player.type("\x1d")
        player.wait_for("completed, reward 0.0")


@pytest.mark.criu
async def test_a_person_goes_on_in_the_open_editor_of_a_suspended_episode(task_dir: Path, tmp_path: Path) -> None:
    config, run = config_of(task_dir, terminal=SMALL), tmp_path / "run"
    said = [message("x=$RANDOM$RANDOM; echo $x | tee /srv/x\n"), message("vi /srv/answer\n"), message("idone")]
    policy = Script(*said)
    evaluating = asyncio.ensure_future(evaluate([config], policy.player(run), episodes=1))
    await policy.is_thinking.wait()
    evaluating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await evaluating
    with playing("--from", str(run / "test/batch_0000/task/episode_001")) as player:
        player.wait_for("done")
        player.type("\x1b:wq\r")
        player.wait_for("vi /srv/answer")  # the shell again
        player.type("clear; echo $((x - $(cat /srv/x)))same\r")
        player.wait_for("0same")
        player.type("\x1d")
        player.wait_for("completed, reward 1.0")
    (result,) = await evaluate([config], Script(*said, message("\x1b:wq\n"), COMPLETE).player(run), episodes=1)
    assert (result.reward, result.resumed) == (1.0, "exact"), "the evaluation goes on from there, too"


@pytest.mark.browser
async def test_the_command_on_the_page_of_a_run_plays_on(task_dir: Path, tmp_path: Path) -> None:
    config, run = TerminalEnvConfig(task_dir=task_dir, sandbox="local", terminal=SMALL), tmp_path / "it's a run"
    script = Script(message("word=kept; cd /opt\n"), message("cd /usr; word=gone\n"), COMPLETE, COMPLETE)
    await evaluate([config], script.player(run), episodes=1)
    command = "document.querySelector('.detail p code')?.textContent"
    async with browser(tmp_path / "profile") as page:
        with Viewer([run], port=0) as viewer:
            await page.open(viewer.url)
            await page.wait_for(f"{command}?.endsWith(' --turn 3')")
            for turn in (0, 1):
                await page.press("n")
                await page.wait_for(f"{command}.endsWith(' --turn {turn}')")
            program, *words = shlex.split(await page.run(command))
    assert (program, words.pop(0)) == ("harbor-gym", "play")
    with playing(*words) as player:
        player.wait_for("/opt#")
        player.type("echo $word-$PWD\r")
        player.wait_for("kept-/opt")
        player.type("\x1d")
        player.wait_for("completed, reward 0.0")
