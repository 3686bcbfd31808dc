"""`play` at a terminal: its output at the start, during the episode, and at the end."""

import sys
from pathlib import Path
from typing import Any, override

from harbor_gym.testing import FakeEnvironment
from tests.helpers.keyboard import KeyboardUser
from tests.helpers.tasks import write_task

INSTRUCTION = "Write the word done."
SAYS = "FAIL: /srv/answer holds nothing"


class Talking(FakeEnvironment):
    """A sandbox whose verifier prints."""

    @override
    def grade(self) -> Any:
        self.files.write("/logs/verifier/test-stdout.txt", SAYS.encode())
        return super().grade()


def test_a_player_is_told_what_starts_can_read_the_task_again_and_sees_the_verifiers_output(tmp_path: Path) -> None:
    task = write_task(tmp_path / "my_task", instruction=INSTRUCTION)
    player = KeyboardUser([sys.executable, "-m", "harbor_gym", "play", str(task), "--env", f"{__name__}:Talking"])
    player.wait_for("starting a sandbox of my_task")
    player.wait_for("Enter starts")
    player.type("\n")
    player.wait_for("$")  # the first screen: the terminal is raw by now
    player.type("\x1c")
    player.wait_for(INSTRUCTION)
    player.wait_for("Any key goes back")
    player.type(" ")
    player.wait_for("$")
    player.type("\x1d")
    player.wait_for(SAYS)
    player.wait_for("completed, reward 1.0\n")
    assert player.end() == 0
