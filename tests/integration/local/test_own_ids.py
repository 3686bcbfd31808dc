"""Ranges of user ids: each sandbox of this machine has one of its own, and nobody but root can take them."""

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym._runtime.procfs import descendants
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import own_ids
from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left", "own_ids_here")]

_CLAIMS = Path("/run/harbor-gym/ids")
_FIRST, _COUNT, _RANGES = 0x70000000, 1 << 16, 4094
_NOBODY = 65534


@pytest.fixture
def own_ids_here() -> None:
    if is_rootless() or own_ids.refusal():
        pytest.skip("sandboxes have no ids of their own here: it needs root, Linux 5.19 and a cache on ext4")


async def _range_of(sandbox: LocalEnvironment) -> int:
    return (int((await output(sandbox, "cat /proc/self/uid_map")).split()[1]) - _FIRST) // _COUNT


def _supervisors() -> list[int]:
    """Return the pids of this process's supervisors."""
    return [
        *map(
            int, Path(f"/proc/{forkserver_pid()}/task/{forkserver_pid()}/children").read_text(encoding="utf-8").split()
        )
    ]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _is_claimed(number: int) -> bool:
    with _CLAIMS.open("rb+") as claims:
        ask = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        return struct.unpack("hhqqi", fcntl.fcntl(claims, fcntl.F_OFD_GETLK, ask))[0] != fcntl.F_UNLCK


async def test_a_stranger_can_take_no_lock(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        assert _is_claimed(await _range_of(sandbox))
        attempt = (
            f"for way in 'exec 3<{_CLAIMS}' 'exec 3>>{_CLAIMS}' 'ls {_CLAIMS.parent}' 'mv {_CLAIMS.parent} /run/x'; do "
            '(eval "$way") 2>/dev/null && echo "$way"; done; id -u'
        )
        tried = await asyncio.to_thread(
            subprocess.run, ["/bin/sh", "-c", attempt], user=_NOBODY, group=_NOBODY, extra_groups=[],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert tried.stdout == f"{_NOBODY}\n"


async def test_two_sandboxes_have_two_ranges_and_a_killed_supervisor_keeps_none(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "one")) as one, running(make_sandbox(tmp_path / "two")) as two:
        ranges = [await _range_of(one), await _range_of(two)]
        assert len(set(ranges)) == 2
        assert all(map(_is_claimed, ranges))
        for supervisor in _supervisors():
            left = descendants(supervisor)
            os.kill(supervisor, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_SEC):
                while any(map(_lives, left)):  # noqa: ASYNC110  # the death of another's child sends no event
                    await asyncio.sleep(0.02)
        with pytest.raises(SandboxError):
            await one.exec("true")
        assert not any(map(_is_claimed, ranges))


_TRAINER = """
import asyncio, os, subprocess, sys
from pathlib import Path
from harbor_gym.errors import SandboxStartError
from tests.helpers.sandboxes.local import make_sandbox, running

async def start():
    program, work, *others = sys.argv
    os.unshare(os.CLONE_NEWNET)
    try:
        async with running(make_sandbox(Path(work))) as sandbox:
            print((await sandbox.exec("cat /proc/self/uid_map")).stdout.split()[1], flush=True)
            if others:
                subprocess.run([sys.executable, "-c", os.environ["TRAINER"], *others], check=True)
    except SandboxStartError as exc:
        print("refused:", exc, flush=True)

asyncio.run(start())
"""
_STRANGERS = """
import fcntl, os, socket, struct, subprocess, sys

os.unshare(os.CLONE_NEWNS | os.CLONE_NEWNET)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
os.mkdir("/run/harbor-gym", 0o700)
what, *work = sys.argv[1:]
if what == "take names":
    taken = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4094)]
    for number, name in enumerate(taken):
        name.bind(f"\\0harbor-gym-ids-{number}")
elif what == "make the directory":
    os.chown("/run/harbor-gym", 65534, 65534)
elif what == "lock all but one":
    claims = os.open("/run/harbor-gym/ids", os.O_RDWR | os.O_CREAT, 0o600)
    for first, count in ((0, 17), (18, 4094 - 18)):
        fcntl.fcntl(claims, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, first, count, 0))
subprocess.run([sys.executable, "-c", os.environ["TRAINER"], *work], check=True)
"""


def _start_after(what: str, *work: Path) -> list[str]:
    """Start a sandbox in each directory, by a trainer each, while the ones before have theirs.

    The trainers share a /run of their own, and each has its own network namespace.

    Args:
        what: The others' work before.
        work: The directories.

    Returns:
        For each, the first of its ids, or the reason for a refusal.
    """
    done = subprocess.run(
        [sys.executable, "-c", _STRANGERS, what, *map(str, work)],
        capture_output=True, text=True, check=False, env={**os.environ, "TRAINER": _TRAINER},
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_names_that_any_user_can_take_block_no_start(tmp_path: Path) -> None:
    (first,) = _start_after("take names", tmp_path / "sandbox")
    assert first.isdecimal(), first


def test_who_finds_every_range_taken_learns_it_in_one_line_whatever_its_network(tmp_path: Path) -> None:
    first, second = _start_after("lock all but one", tmp_path / "first", tmp_path / "second")
    assert int(first) == _FIRST + 17 * _COUNT
    assert second.startswith("refused: the local sandbox could not be set up: ")
    assert "other sandboxes have all 4094 ranges" in second


def test_a_directory_that_is_another_users_is_refused_in_one_line(tmp_path: Path) -> None:
    (line,) = _start_after("make the directory", tmp_path / "sandbox")
    assert line.endswith("another user can write there: /run/harbor-gym has to be root's directory")
