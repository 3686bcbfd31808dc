"""What this process looks at and does in a local sandbox by itself, without a process there."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath

import pytest

from harbor_gym.episode import custody
from harbor_gym.sandboxes import direct_access
from harbor_gym.sandboxes.local import LocalEnvironment
from tests.local_sandboxes import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox."""
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        yield made


def test_a_root_is_only_that_of_the_very_process() -> None:
    with pytest.raises(direct_access.NotPlainError, match="another one"), direct_access.root_of(os.getpid(), "1"):
        pytest.fail("a root of another process")
    with pytest.raises(direct_access.NotPlainError), direct_access.root_of(2**22 + 1, "1"):
        pytest.fail("a root of no process")


_CLEAN = "mkdir -p /s/out /s/empty /s/full && touch /s/full/.hidden && chmod 700 /s/out"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("true", ("/s/empty",)),
        ("(setsid true; true)", ("/s/empty",)),
        ("rm -r /s/empty", ()),
        ("setsid sleep 1000 >/dev/null 2>&1 &", None),
        ("sleep 1000 >/dev/null 2>&1 & kill -STOP $!", None),
        ("touch /s/out/.hidden", None),
        ("chown 1234 /s/out", None),
        ("mkdir /s/tests", None),
        ("ln -s /nowhere /s/tests", None),
        ("mv /s/out /s/o && ln -s o /s/out", None),
        ("mv /s /t && ln -s t /s", None),
        ("rmdir /s/empty && ln -s out /s/empty", None),
        ("rmdir /s/empty && touch /s/empty", None),
    ],
)
async def test_a_sandbox_at_rest_is_settled_and_no_other(
    sandbox: LocalEnvironment, change: str, expected: tuple[str, ...] | None
) -> None:
    await output(sandbox, f"{_CLEAN}\n{change}")
    empty, full, out, tests = (PurePosixPath("/s") / name for name in ("empty", "full", "out", "tests"))
    settled = await sandbox.settle_at_rest([empty, full], out, [tests])
    assert settled == (None if expected is None else tuple(map(PurePosixPath, expected)))
    mode = "700" if expected is None else "777"
    assert await output(sandbox, "stat -L -c %a /s/out") == mode


_LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
"""Its first thread ends and the other runs on."""

_RELAY = """
import os
while os.fork() == 0:
    os.setsid()
"""
"""Each process starts the next and ends."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program knows x86_64's number of exit(2)")
@pytest.mark.parametrize("program", [_LEADERLESS, _RELAY])
async def test_nothing_that_hides_is_taken_for_nobody_and_all_is_stopped(
    sandbox: LocalEnvironment, program: str
) -> None:
    census = await custody.take_census(sandbox)
    await asyncio.sleep(0.05)  # the clock's tick is a hundredth
    await output(sandbox, f"setsid python3 -c '{program}' >/dev/null 2>&1 & sleep 0.3")
    for _ in range(200):
        assert await sandbox.settle_at_rest([], None, []) is None
    await custody.stop_processes(sandbox, census)
    assert await output(sandbox, "ps -eLo comm=") == "bash\nps"
    assert await sandbox.settle_at_rest([], None, []) == ()
