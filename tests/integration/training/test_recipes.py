"""The short recipes, run as a person runs them."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalConfig, TerminalEnvConfig
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import message

TASK = ROOT / "tasks" / "devops_task"
MAX_LINES = 60
PYTHON = (sys.executable, "-W", "error::UserWarning", "-W", "error::ResourceWarning")
SHORT = ("random_agent", "scripted_agent", "play", "gym_vector")

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


def run(recipe: str, *arguments: str) -> str:
    command = [*PYTHON, str(ROOT / "recipes" / f"{recipe}.py"), "--task-dir", str(TASK), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("recipe", SHORT)
def test_a_recipe_fits_on_a_page(recipe: str) -> None:
    assert len((ROOT / "recipes" / f"{recipe}.py").read_text().splitlines()) <= MAX_LINES


def test_the_random_agent_types_and_is_graded() -> None:
    lines = run("random_agent", "--max-turns", "3").splitlines()
    assert [line[:7] for line in lines[:3]] == ["turn  1", "turn  2", "turn  3"]
    assert lines[-1] == "episode 1: max_turns, reward 0.0"


def test_the_scripted_agent_solves_the_task() -> None:
    assert run("scripted_agent").splitlines()[-1] == "completed, reward 1.0"


def test_the_vector_recipe_runs_episodes_side_by_side() -> None:
    last = run("gym_vector", "--num-envs", "2", "--episodes", "4").splitlines()[-1]
    assert re.fullmatch(r"4 episodes, mean reward 1\.00, \d+ a minute", last)


def test_a_person_plays_in_their_own_terminal_and_sees_the_reward() -> None:
    player = _Player([*PYTHON, str(ROOT / "recipes" / "play.py"), "--task-dir", str(TASK)])
    player.wait_for("Enter starts")
    player.type("\r")
    player.wait_for("root@sandbox:~#")
    for keys, seen in (
        ("rm /srv/app/app.pid; chmod 600 /etc/app/key\r", "root@sandbox:~#"),
        ("sed -i 's/ap$/app/' /etc/app/app.conf\r", "root@sandbox:~#"),
        ("echo né一$((20 + 22))\r", "né一42"),
        ("sleep 60\r", "sleep 60"),
        ("\x03", "^C"),
        ("appctl start && echo up\r", "\nup"),
    ):
        player.type(keys)
        player.wait_for(seen)
    player.type("\x1d")
    player.wait_for("completed, reward 1.0")
    assert player.end() == 0


async def test_a_person_goes_on_from_a_turn_of_an_episode(tmp_path: Path) -> None:
    config = TerminalEnvConfig(task_dir=TASK, terminal=TerminalConfig(columns=90, rows=25))
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for keys in ("word=kept; cd /opt\n", "cd /usr; word=gone\n"):
            await env.step(message(keys))
        (await env.snapshot()).write(tmp_path / "run/transcripts/test/episode_001.json")
    start = ("--from", str(tmp_path / "run/test/episode_001"), "--turn", "1")
    player = _Player([sys.executable, "-m", "harbor_gym", "play", *start])
    player.wait_for("Enter starts")
    player.type("\r")
    player.wait_for("root@sandbox:/opt#")
    player.type("echo $word-$PWD\r")
    player.wait_for("kept-/opt")
    player.type("\x1d")
    player.wait_for("completed, reward 0.0")
    assert player.end() == 0


class _Player:
    """A process under a pseudo-terminal, and the fingers at it."""

    def __init__(self, command: list[str]) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execv(command[0], command)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._seen = ""

    def type(self, keys: str) -> None:
        self._seen = ""
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_SEC
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen).replace("\r", ""):
            if time.monotonic() > deadline:
                os.close(self._terminal)  # which hangs up
            assert time.monotonic() < deadline, f"{text!r} is not in {self._seen[-2000:]!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")

    def end(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)
