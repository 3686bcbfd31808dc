"""The short recipes, run as a person runs them."""

import re
import subprocess
import sys

import pytest

from tests.helpers.keyboard import KeyboardUser
from tests.helpers.paths import ROOT

TASK = ROOT / "tasks" / "devops_task"
MAX_LINES = 60
PYTHON = (sys.executable, "-W", "error::UserWarning", "-W", "error::ResourceWarning")
SHORT = ("random_agent", "scripted_agent", "play", "gym_vector")

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


def run(recipe: str, *arguments: str) -> str:
    command = [*PYTHON, str(ROOT / "recipes" / f"{recipe}.py"), "--task-dir", str(TASK), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
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
    player = KeyboardUser([*PYTHON, str(ROOT / "recipes" / "play.py"), "--task-dir", str(TASK)])
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
