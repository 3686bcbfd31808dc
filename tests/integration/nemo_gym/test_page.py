"""The commands of docs/nemo_gym.md are NeMo Gym's own, with flags that they take."""

import re
import shlex
import subprocess

import pytest

from tests.helpers.nemo_gym.servers import BIN
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.nemo_gym

_PAGE = (ROOT / "docs/nemo_gym.md").read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"^(?:\w+=\S+ )*gym ((?:env|eval) .*?)(?: &)?$", _PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_takes_the_flags_that_it_has_there(line: str) -> None:
    group, name, *words = shlex.split(line)
    shown = subprocess.run([BIN / "gym", group, name, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z-]+", shown))
    assert {word for word in words if word.startswith("--")} <= known


def test_the_page_has_a_command_for_each_thing_to_do() -> None:
    assert [line.split()[:2] for line in COMMANDS] == [["env", "start"], ["eval", "run"], ["eval", "export"]]
