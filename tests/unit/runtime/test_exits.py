"""The end of a program: its status, its last words, what it registered, and nothing of the interpreter's own end."""

import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

ABORTS_LATE = """\
import atexit, os, sys
sys.path.insert(0, {recipes!r})
from exits import run_and_exit

class Late:
    def __del__(self, abort=os.abort):
        abort()

late = Late()
late.itself = late  # gone with the interpreter, as a thread of a library's may be
atexit.register(lambda: print("registered"))

def program():
    print("begun")
    {end}

"""


def run(end: str, call: str = "run_and_exit(program)") -> subprocess.CompletedProcess[str]:
    code = ABORTS_LATE.format(end=end, recipes=str(ROOT / "recipes")) + call
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("return 7", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise OSError('broken')", 1, "OSError: broken\n"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
    ],
)
def test_status_and_last_words_are_kept(end: str, status: int, said: str) -> None:
    done = run(end)
    assert (done.returncode, done.stdout) == (status, "begun\nregistered\n")
    assert done.stderr.endswith(said)
    assert bool(done.stderr) == bool(said)


def test_the_interpreters_own_end_would_have_aborted() -> None:
    assert run("return", "program()").returncode < 0
