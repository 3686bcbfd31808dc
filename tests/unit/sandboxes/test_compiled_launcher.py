"""The static program that local sandboxes start from: the compiled form is the one that its source gives."""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym.sandboxes.supervisor import forkserver_client
from tests.helpers.paths import ROOT

_ROOM = Path(forkserver_client.__file__).parent / "program" / "kernel"
_SCRIPT = ROOT / ".ci" / "build_launcher.sh"


def _program(machine: str) -> bytes:
    code = f"import sys; sys.path[:0] = [{str(_ROOM)!r}]; from machine_code import *; print(PROGRAMS[{machine!r}])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    return base64.b64decode(done.stdout)


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    path = tmp_path / "launcher"
    path.write_bytes(_program(os.uname().machine))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 0x3E), ("aarch64", 0xB7)])
def test_it_is_a_static_executable_that_asks_for_no_library(machine: str, number: int) -> None:
    program = _program(machine)
    assert program[:6] == b"\x7fELF\x02\x01"
    assert int.from_bytes(program[18:20], "little") == number
    assert b"ld-linux" not in program
    assert len(program) < 4096


def test_it_becomes_the_program_that_it_is_given(launcher: Path) -> None:
    done = subprocess.run(
        ["launch", "/bin/sh", "sh", "-c", 'echo "$0 $1 $WORD"; exit 7', "name", "one"],
        executable=launcher, capture_output=True, text=True, check=False, env={"WORD": "inherited"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "name one inherited\n", "")


def test_what_can_not_be_executed_is_named_with_the_kernels_error(launcher: Path) -> None:
    done = subprocess.run(["launch", "/nothing", "x"], executable=launcher, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (126, "/nothing: cannot execute: error 2\n")


_TIE = """
import os, sys
words = ["tied", str(os.getpid()), "/bin/sh", "sh", "-c", 'echo "$0 $1"; pwd; read -r line', "name", "one"]
os.posix_spawn(sys.argv[1], words, {})
sys.stdin.read()
"""


def test_tied_to_its_parent_it_ends_with_it(launcher: Path) -> None:
    """The pipe is open for as long as one of both processes lives."""
    with subprocess.Popen(
        [sys.executable, "-c", _TIE, launcher],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["name one\n", "/\n"]
        parent.kill()
        assert parent.stdout.read() == ""


def test_tied_to_a_parent_that_is_gone_it_does_not_begin(launcher: Path) -> None:
    words = ["tied", str(os.getppid()), "/bin/sh", "sh", "-c", "echo begun"]
    done = subprocess.run(words, executable=launcher, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (126, "")


def test_as_init_it_reports_and_lives_until_its_input_ends(launcher: Path) -> None:
    init = subprocess.Popen(["init"], executable=launcher, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with init:
        assert init.stdout is not None
        assert init.stdin is not None
        assert init.stdout.read() == b"up"
        assert init.poll() is None
        init.stdin.write(b"x")
        init.stdin.flush()
        assert init.poll() is None
    assert init.returncode == 0


def test_it_comes_from_its_source(tmp_path: Path) -> None:
    """Where the compilers are those that it was made with; other versions may arrange the code in other ways."""
    if any(shutil.which(f"{machine}-linux-gnu-gcc") is None for machine in ("x86_64", "aarch64")):
        pytest.skip("apt-get install -y gcc gcc-aarch64-linux-gnu")
    version = subprocess.run(["x86_64-linux-gnu-gcc", "-dumpfullversion"], capture_output=True, text=True, check=True)
    if not version.stdout.startswith("12."):
        pytest.skip(f"made with gcc 12, and this is {version.stdout.strip()}: run {_SCRIPT.name} in Debian 12")
    copy = tmp_path / "repository"
    room = copy / _ROOM.relative_to(_SCRIPT.parents[1])
    room.mkdir(parents=True)
    (copy / ".ci").mkdir()
    for source, target in (
        (_SCRIPT, copy / ".ci"),
        (_SCRIPT.with_name("lib.sh"), copy / ".ci"),
        (_ROOM / "launcher.c", room),
    ):
        shutil.copy(source, target)
    subprocess.run([copy / ".ci" / _SCRIPT.name], check=True, capture_output=True)
    assert (room / "machine_code.py").read_text() == (_ROOM / "machine_code.py").read_text()
