"""A kill leaves nothing behind: hosts at random moments, interrupted scripts, episodes cancelled anywhere."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym._runtime.owners import owner_label
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.labels import OWNER_LABEL
from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid
from harbor_gym.sandboxes.supervisor.network import NETWORK_PROGRAM
from tests.helpers.engines import require_engine
from tests.helpers.hostile.first_words import start_network
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.local import make_sandbox, running
from tests.helpers.tasks import BASE, DONE, write_task

SEED = 20261121
COMPLETE = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
KINDS = {"container": ["ps", "-aq"], "network": ["network", "ls", "-q"], "volume": ["volume", "ls", "-q"]}


def kill_rounds(sandbox: str, task: Path, *, count: int, at_once: int, max_sec: float) -> dict[str, Any]:
    words = ["rounds", sandbox, str(task), count, at_once, SEED, max_sec]
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.killed_host", *map(str, words)]
    # To files: a process that wrongly lives on would hold pipes open, and the test would hang instead of failing.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=errors, check=False, timeout=2 * PATIENCE_SEC)
        output.seek(0)
        errors.seek(0)
        assert done.returncode == 0, errors.read().decode()
        return json.loads(output.read())


def groups_of(owners: list[str]) -> list[str]:
    found = [Path(at) / name for at, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    return [str(path) for path in found if any(owner in path.name for owner in owners)]


def mounts() -> set[str]:
    return {line for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines() if "harbor" in line}


def in_docker(owners: list[str]) -> list[str]:
    filters = [["--filter", f"label={OWNER_LABEL}={owner}"] for owner in owners]
    return [
        f"{kind} {name}"
        for kind, words in KINDS.items()
        for item in filters
        for name in subprocess.check_output(["docker", *words, *item], text=True).split()
    ]


def contents(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.local
@pytest.mark.slow
def test_local_hosts_killed_in_a_hundred_episodes_leave_nothing(task_dir: Path, scratch: Path) -> None:
    require_engine("local")
    before = mounts()
    outcome = kill_rounds("local", task_dir, count=13, at_once=8, max_sec=1.5)
    assert outcome["began"] >= 100
    assert outcome["orphans"] == []
    assert mounts() == before
    assert groups_of(outcome["owners"]) == []
    assert contents(scratch), "none was killed inside an episode"
    assert run_here("reap").returncode == 0
    assert contents(scratch) == []


async def kill_half_started(directory: Path) -> bool:
    """Start a sandbox and kill the process that its supervisor builds it with; return whether in time."""
    sandbox = make_sandbox(directory, config={"network_mode": "no-network"})
    starting = asyncio.create_task(sandbox.start(force_build=False))
    first = 0
    try:
        while not first and not starting.done():
            await asyncio.sleep(0)
            first = next((pid for supervisor in children(forkserver_pid()) for pid in children(supervisor)), 0)
        if first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        await asyncio.wait((starting,))
        return isinstance(starting.exception(), SandboxError)
    finally:
        await asyncio.wait((starting,))
        await sandbox.stop(delete=True)


def children(of: int, name: str | None = None) -> list[int]:
    """Return the children of a process; with a name, those of its descendants that go by it."""
    try:
        pids = [int(pid) for pid in Path(f"/proc/{of}/task/{of}/children").read_text(encoding="utf-8").split()]
        if name is None:
            return pids
        named = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == name]
    except OSError:  # gone meanwhile
        return []
    return named + [found for pid in pids if pid not in named for found in children(pid, name)]


def command_line(pid: int) -> str:
    """Return a process's arguments; nothing once it ends."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


def orphans() -> list[int]:
    """Return the sandboxes' first processes that the machine's first process inherited."""
    return [pid for pid in children(1) if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "init"]


@pytest.mark.local
async def test_a_sandbox_killed_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    require_engine("local")
    async with running(make_sandbox(tmp_path, config={"network_mode": "no-network"})):
        pass  # the image is there from now on
    before = set(orphans())
    killed = [await kill_half_started(tmp_path) for _ in range(30)]
    assert sum(killed) >= 3, "too few were killed in time to show anything"
    assert set(orphans()) <= before


async def kill_half_ended(directory: Path) -> bool:
    """Stop a sandbox and kill its supervisor once that has killed the network's process; return whether in time."""
    sandbox = make_sandbox(directory, network_policy=NetworkPolicy(network_mode=NetworkMode.PUBLIC))
    async with running(sandbox):
        await start_network(sandbox)
        (supervisor,) = (pid for pid in children(forkserver_pid()) if children(pid, NETWORK_PROGRAM))
        (network,) = children(supervisor, NETWORK_PROGRAM)
        ending = asyncio.create_task(sandbox.stop(delete=True))
        while command_line(network):  # noqa: ASYNC110  # a process's beginning end sends no event
            await asyncio.sleep(0)
        is_alive = supervisor in children(forkserver_pid())
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)
        await ending
        return is_alive


@pytest.mark.local
@pytest.mark.usefixtures("nothing_left")
async def test_a_supervisor_killed_while_it_ends_leaves_nothing(tmp_path: Path) -> None:
    require_engine("local")
    before = set(orphans())
    killed = 0
    async with asyncio.timeout(PATIENCE_SEC):
        while killed < 5:
            killed += await kill_half_ended(tmp_path)
    assert groups_of([owner_label()]) == []
    assert set(orphans()) <= before


_CLOSES = """
import asyncio, sys
from pathlib import Path
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig

async def main():
    async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=Path(sys.argv[1]), sandbox="local")) as env:
        await env.reset()

asyncio.run(main())
"""
_IS_LEFT = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
left = open("/proc/thread-self/children").read().split()
print([open(f"/proc/{pid}/comm").read().strip() for pid in left])
"""


@pytest.mark.local
def test_a_caller_that_ends_after_a_close_leaves_its_parent_no_process(task_dir: Path) -> None:
    """Where the machine's first process collects nothing, such a process would stay for ever."""
    require_engine("local")
    command = [sys.executable, "-c", _IS_LEFT, _CLOSES, str(task_dir)]
    assert subprocess.check_output(command, text=True, cwd=ROOT).strip() == "[]"


@pytest.mark.docker
@pytest.mark.slow
def test_what_killed_docker_hosts_leave_is_reaped(tmp_path: Path, scratch: Path) -> None:
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    task = write_task(tmp_path / f"hgkill-{os.getpid()}")
    outcome = kill_rounds("docker", task, count=3, at_once=2, max_sec=4.0)
    assert outcome["began"] >= 6
    assert outcome["orphans"] == []
    assert run_here("reap").returncode == 0
    assert in_docker(outcome["owners"]) == []
    named = ["docker", "ps", "-aq", "--filter", f"name={task.name}"]
    assert subprocess.check_output(named, text=True) == "", "a container without a label was left"
    assert contents(scratch) == []


@pytest.mark.local
@pytest.mark.parametrize(
    ("signals", "is_clean"),
    [([signal.SIGINT], True), ([signal.SIGINT, signal.SIGINT], False), ([signal.SIGTERM], False)],
    ids=["SIGINT", "SIGINT twice", "SIGTERM"],
)
def test_an_interrupted_script_ends_by_the_signal_and_leaves_nothing(
    task_dir: Path, scratch: Path, signals: list[signal.Signals], is_clean: bool
) -> None:
    require_engine("local")
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.killed_host", "script", "local", str(task_dir)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        assert [script.stdout.readline() for _ in range(3)] == ["began\n", "ended\n", "began\n"]
        time.sleep(0.1)  # into the second episode
        for number in signals:
            script.send_signal(number)
            time.sleep(0.02)
        script.communicate(timeout=PATIENCE_SEC)
    assert script.returncode == -signals[0]
    assert not is_clean or contents(scratch) == []
    assert run_here("reap").returncode == 0
    assert contents(scratch) == []
    nothing_runs_of(script.pid)


def nothing_runs_of(owner: int) -> None:
    """Wait until no supervisor of a dead process runs: each has its caller's pid as its last argument."""
    deadline = time.monotonic() + PATIENCE_SEC
    while any(text.endswith(f"\0forkserver\0003\0{owner}\0") for text in command_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command_lines() -> list[str]:
    return [command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]


class _Cut:
    """Awaits a coroutine and cancels the task that does at the n-th time that it suspends."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at
        self.suspensions = 0

    @types.coroutine
    def run(self) -> Generator[Any, Any, Any]:
        resume: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            try:
                waited_for = resume()
            except StopIteration as end:
                return end.value
            self.suspensions += 1
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                resume = functools.partial(self._work.send, (yield waited_for))
            except BaseException as exc:
                resume = functools.partial(self._work.throw, exc)


async def cut_episode(task_dir: Path, at: int) -> int | None:
    """Run an episode and cancel it at its n-th suspension; return None when it was over before."""

    async def episode() -> None:
        async with AsyncTerminalGymEnv(
            TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
        ) as env:
            await env.reset()
            await env.step([(DONE, 30.0)])
            await env.step(COMPLETE)

    cut = _Cut(episode(), at)

    async def run_it() -> None:
        await cut.run()

    task = asyncio.create_task(run_it())
    await asyncio.wait((task,))
    if cut.suspensions < at:
        task.result()
        return None
    assert task.cancelled() or task.exception() is None, task.exception()
    return cut.suspensions


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_an_episode_cancelled_at_any_suspension_leaves_nothing(task_dir: Path) -> None:
    require_engine("local")
    cuts = 0
    while await cut_episode(task_dir, cuts + 1) is not None:
        cuts += 1
    assert cuts > 7
