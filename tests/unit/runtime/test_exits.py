"""The end of a program: its status, its last words, its exit functions, and nothing of the interpreter's own end."""

import signal
import subprocess
import sys

import pytest

ABORTS_LATE = """\
import atexit, os, sys, types
from harbor_gym.cli.exits import run_and_exit

sys.modules["tinker"] = types.ModuleType("tinker")  # whose thread has no end

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
    code = ABORTS_LATE.format(end=end) + call
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("end", "status", "output"),
    [
        ("return 7", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise OSError('broken')", 1, "OSError: broken\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_status_and_last_words_are_kept(end: str, status: int, output: str) -> None:
    done = run(end)
    assert (done.returncode, done.stdout) == (status, "begun\nregistered\n")
    assert done.stderr.endswith(output)
    assert bool(done.stderr) == bool(output)


def test_the_interpreters_own_end_would_have_aborted() -> None:
    assert run("return", "program()").returncode < 0


SLEEPS = """\
import asyncio, os, signal, sys
if len(sys.argv) > 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from harbor_gym.cli.exits import run_and_exit

async def work():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        print("cleaned up")

def program():
    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        sys.exit(130)

run_and_exit(program)
"""


@pytest.mark.parametrize(
    ("sent", "status", "options"),
    [
        (signal.SIGTERM, 143, []),
        (signal.SIGHUP, 129, []),
        (signal.SIGINT, 130, []),
        (signal.SIGTERM, 143, ["deaf"]),
        (signal.SIGHUP, 129, ["deaf"]),
    ],
    ids=["SIGTERM", "SIGHUP", "SIGINT", "SIGTERM in the background", "SIGHUP in the background"],
)
def test_a_signal_cleans_up_as_ctrl_c_does(sent: signal.Signals, status: int, options: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPS, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(sent)
        assert process.stdout.read() == "cleaned up\n"
        assert process.wait() == status
