"""`play` at a terminal: its output at the start, during the episode, and at the end."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, override

from harbor_gym.testing import FakeEnvironment
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task

INSTRUCTION = "Write the word done."
SAYS = "FAIL: /srv/answer holds nothing"


class Talking(FakeEnvironment):
    """A sandbox whose verifier prints."""

    @override
    def grade(self) -> Any:
        self.files.write("/logs/verifier/test-stdout.txt", SAYS.encode())
        return super().grade()


class Screen:
    """A command at a terminal of its own."""

    def __init__(self, *words: str | Path) -> None:
        ours, theirs = pty.openpty()
        self.handle = ours
        environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harbor_gym", *map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def wait_for(self, text: str) -> str:
        """Return the output up to a text."""
        shown = ""
        while text not in shown:
            shown += self._read()
        return shown

    def end(self) -> str:
        """Return the rest of the output."""
        shown = ""
        while part := self._read(is_over=True):
            shown += part
        os.close(self.handle)
        return shown

    def press(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def _read(self, *, is_over: bool = False) -> str:
        try:
            return os.read(self.handle, 65536).decode("utf-8", "replace")
        except OSError:  # its other end was closed
            assert is_over, self.process.wait()
            return ""


def test_a_player_is_told_what_starts_can_read_the_task_again_and_sees_the_verifiers_output(tmp_path: Path) -> None:
    task = write_task(tmp_path / "my_task", instruction=INSTRUCTION)
    screen = Screen("play", task, "--env", f"{__name__}:Talking")
    assert "starting a sandbox of my_task" in screen.wait_for("Enter starts")
    screen.press("\n")
    screen.wait_for("\x1b[H")  # the first screen: the terminal is raw by now
    screen.press("\x1c")
    assert INSTRUCTION in screen.wait_for("Any key goes back")
    screen.press(" ")
    screen.wait_for("\x1b[H")
    screen.press("\x1d")
    end = screen.end()
    assert screen.process.wait() == 0
    assert SAYS in end
    assert end.splitlines()[-1] == "completed, reward 1.0"
