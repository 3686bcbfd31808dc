"""How a sandbox is taken from its policy, in bounded time: by the supervisor, and by a script in the sandbox.

Every sandbox of another kind has the script alone. Both are held against the same cases.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from harbor.models.trial.config import ServiceVolumeConfig

from harbor_gym.episode.grading import cleanup
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor.client import SupervisedSandbox
from harbor_gym.terminal import Leftovers
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import DOCKERFILE, make, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

_OUTPUT, _TESTS = PurePosixPath("/logs/verifier"), PurePosixPath("/tests")


class _ByScript(LocalEnvironment):
    """A local sandbox without the supervisor's clean-up."""

    clean_up = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


_BY_BOTH = pytest.mark.parametrize("kind", [LocalEnvironment, _ByScript], ids=["supervisor", "script"])


@pytest.fixture
def kind() -> type[LocalEnvironment]:
    """The class of the sandbox."""
    return LocalEnvironment


@pytest.fixture
async def sandbox(tmp_path: Path, kind: type[LocalEnvironment]) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox."""
    async with running(make(kind, tmp_path / "sandbox", DOCKERFILE)) as made:
        yield made


async def processes(sandbox: LocalEnvironment) -> list[str]:
    """Return the running processes, without the first one, the command that lists them, and those that have ended."""
    lines = (await output(sandbox, "exec ps -e --no-headers -o stat,args")).splitlines()[1:-1]
    return sorted(args for state, args in (line.split(maxsplit=1) for line in lines) if state[0] not in "ZX")


_SERVICE = "setsid sleep 1000 >/dev/null 2>&1 &"
_DEAF = "for i in $(seq 900); do (trap '' TERM HUP INT; exec setsid sleep 1001) >/dev/null 2>&1 & done"


@_BY_BOTH
async def test_nine_hundred_that_heed_no_signal_are_stopped_and_counted(sandbox: LocalEnvironment) -> None:
    await output(sandbox, f"{_SERVICE}\n")
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, _DEAF)
    stopped = await cleanup.stop_processes(sandbox, baseline)
    assert stopped.processes == 900
    assert await processes(sandbox) == ["sleep 1000"]


@_BY_BOTH
@pytest.mark.parametrize("service", ["", _SERVICE])
async def test_a_fork_bomb_ends(tmp_path: Path, kind: type[LocalEnvironment], service: str) -> None:
    # The script is one process among them, and no more than that.
    most = 200 if kind is LocalEnvironment else 50
    async with running(make(kind, tmp_path, DOCKERFILE, max_processes=most)) as sandbox:
        await output(sandbox, f"{service}\n")
        baseline = await cleanup.take_baseline(sandbox)
        await sandbox.exec(
            "bomb() { bomb | bomb & }; trap '' TERM; bomb 2>/dev/null; sleep 0.5", timeout_sec=PATIENCE_SEC
        )
        await cleanup.stop_processes(sandbox, baseline)
        assert await processes(sandbox) == (["sleep 1000"] if service else [])


@_BY_BOTH
async def test_who_is_stopped_may_end_in_good_order(sandbox: LocalEnvironment) -> None:
    baseline = await cleanup.take_baseline(sandbox)
    program = 'trap "echo saved > /saved; exit" TERM; touch /ready; while :; do sleep 0.01; done'
    await output(sandbox, f"setsid bash -c '{program}' >/dev/null 2>&1 & until [ -e /ready ]; do sleep 0.01; done")
    await cleanup.stop_processes(sandbox, baseline)
    assert await output(sandbox, "cat /saved") == "saved"


@_BY_BOTH
async def test_who_works_for_a_service_is_spared_and_whoever_starts_at_the_baseline_is_not(
    sandbox: LocalEnvironment,
) -> None:
    await output(
        sandbox, "setsid bash -c 'while [ ! -e /go ]; do sleep 0.01; done; sleep 1002 & wait' >/dev/null 2>&1 &"
    )
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, "touch /go; setsid sleep 1003 >/dev/null 2>&1 & sleep 0.2")
    stopped = await cleanup.stop_processes(sandbox, baseline)
    assert stopped.processes == 1
    assert "sleep 1002" in await processes(sandbox)
    assert "sleep 1003" not in await processes(sandbox)


_MAKE_OBJECTS = "ipcmk -M 4096 && ipcmk -S 2 && ipcmk -Q"
_COUNT_OBJECTS = "for kind in shm sem msg; do tail -n +2 /proc/sysvipc/$kind | wc -l; done"


@_BY_BOTH
async def test_system_v_objects_go_with_the_policy_and_the_tasks_own_stay(sandbox: LocalEnvironment) -> None:
    await output(sandbox, _MAKE_OBJECTS)
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, f"{_MAKE_OBJECTS}; {_MAKE_OBJECTS}")
    assert (await output(sandbox, _COUNT_OBJECTS)).split() == ["3"] * 3
    await cleanup.stop_processes(sandbox, baseline)
    assert (await output(sandbox, _COUNT_OBJECTS)).split() == ["1"] * 3


@_BY_BOTH
async def test_the_terminals_own_processes_are_not_counted_and_its_directory_goes(sandbox: LocalEnvironment) -> None:
    baseline = await cleanup.take_baseline(sandbox)
    own = "mkdir /run/own; cp /bin/sleep /run/own/; setsid /run/own/sleep 1004 >/dev/null 2>&1 & echo $!"
    shell = await output(sandbox, f"{own}; setsid sleep 1005 >/dev/null 2>&1 & sleep 0.2")
    stopped = await cleanup.stop_processes(sandbox, baseline, terminal=Leftovers((shell,), "/run/own"))
    assert stopped.processes == 1
    assert await processes(sandbox) == []
    assert await output(sandbox, "ls /run | grep own || :") == ""


async def test_a_sandbox_without_processes_is_stopped_once_until_a_command_runs_there(
    sandbox: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    clean_up = SupervisedSandbox.clean_up

    async def noted(self: SupervisedSandbox, work: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        asked.append(work)
        return await clean_up(self, work, *args, **kwargs)

    monkeypatch.setattr(SupervisedSandbox, "clean_up", noted)
    baseline = await cleanup.take_baseline(sandbox)
    for _ in range(3):
        await cleanup.stop_processes(sandbox, baseline)
    assert asked == ["baseline", "stop"]
    await sandbox.is_dir("/tmp")
    await cleanup.stop_processes(sandbox, baseline)
    assert asked == ["baseline", "stop", "path_kind"]
    await sandbox.exec("setsid sleep 1006 >/dev/null 2>&1 &")
    assert (await cleanup.stop_processes(sandbox, baseline)).processes == 1
    late = sandbox.exec_argv("setsid sleep 1007 >/dev/null 2>&1 &", cwd="/")
    await cleanup.stop_processes(sandbox, baseline)
    await asyncio.to_thread(subprocess.run, late, stdin=subprocess.DEVNULL, check=True)
    assert (await cleanup.stop_processes(sandbox, baseline)).processes == 1


def _children(sandbox: LocalEnvironment) -> set[str]:
    supervisor = sandbox._running()._process.pid  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    return set(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="utf-8").split())


async def test_what_follows_the_stop_is_done_by_one_child_which_is_gone_before_a_program_runs(
    sandbox: LocalEnvironment,
) -> None:
    own = _children(sandbox)
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, "mkdir -p /closed/below; chown 1234 /closed; chmod 700 /closed")
    assert _children(sandbox) == own
    await cleanup.stop_processes(sandbox, baseline)
    (child,) = _children(sandbox) - own
    assert await sandbox.is_dir("/closed/below", user="1234:1234")
    assert not await sandbox.is_dir("/closed/below", user="1235:1235")
    await cleanup.open_grading(sandbox, baseline)
    assert (await sandbox.ensure_dirs(["/closed/below/made"])).return_code == 0  # pyright: ignore[reportOptionalMemberAccess]
    await sandbox.enter_verifier_view([PurePosixPath("/srv")])
    assert not await sandbox.is_dir("/closed")
    await sandbox.leave_verifier_view()
    assert await sandbox.is_dir("/closed")
    with pytest.raises(SandboxError, match="nobody-here"):
        await sandbox.is_dir("/closed", user="nobody-here")
    assert child not in _children(sandbox)
    await cleanup.stop_processes(sandbox, await cleanup.take_baseline(sandbox))
    await cleanup.reset_verifier_dirs(sandbox, cleanup.VerifierDirsReset((_OUTPUT, _TESTS), ""))
    assert _children(sandbox) == own
    owners = "stat -c '%u %g %a' /logs/verifier /tests /closed/below/made"
    assert (await output(sandbox, owners)).splitlines() == ["0 0 777", "0 0 755", "0 0 777"]
    await cleanup.stop_processes(sandbox, baseline)
    assert len(_children(sandbox) - own) == 1
    assert await processes(sandbox) == []
    assert _children(sandbox) == own


async def test_a_child_that_is_killed_while_it_waits_for_more_is_replaced(sandbox: LocalEnvironment) -> None:
    own = _children(sandbox)
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, "true")
    await cleanup.stop_processes(sandbox, baseline)
    (child,) = _children(sandbox) - own
    os.kill(int(child), signal.SIGKILL)
    assert await sandbox.is_dir("/tmp")
    await cleanup.reset_verifier_dirs(sandbox, cleanup.VerifierDirsReset((_OUTPUT, _TESTS), ""))
    assert _children(sandbox) == own


_AGENT, _ARTIFACTS = "/logs/agent", "/logs/artifacts"


async def _opened(sandbox: LocalEnvironment, before: str) -> None:
    """Open grading, with a command of the policy's before."""
    await output(sandbox, before)
    baseline = await cleanup.take_baseline(sandbox)
    await cleanup.stop_processes(sandbox, baseline)
    await cleanup.open_grading(sandbox, baseline)


@pytest.fixture
async def trials_sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox with a trial's log directories."""
    mounts = [
        ServiceVolumeConfig(type="bind", source=str(tmp_path / "sandbox" / "trial" / name), target=f"/logs/{name}")
        for name in ("verifier", "agent", "artifacts")
    ]
    async with running(make(LocalEnvironment, tmp_path / "sandbox", DOCKERFILE, mounts=mounts)) as made:
        yield made


async def test_nothing_is_asked_of_a_sandbox_about_log_directories_that_its_policy_left_empty(
    trials_sandbox: LocalEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = trials_sandbox
    asked: list[str] = []
    carry, look = SupervisedSandbox.carry, SupervisedSandbox.clean_up

    async def carry_noted(self: SupervisedSandbox, spec: Any, work: Any) -> None:
        asked.append(f"{spec['work']} {spec['path']}")
        await carry(self, spec, work)

    async def look_noted(self: SupervisedSandbox, work: str, *args: Any, **kwargs: Any) -> Any:
        asked.extend([work] if work == "path_kind" else [])
        return await look(self, work, *args, **kwargs)

    monkeypatch.setattr(SupervisedSandbox, "carry", carry_noted)
    monkeypatch.setattr(SupervisedSandbox, "clean_up", look_noted)
    here, full = tmp_path / "here", tmp_path / "full"
    here.mkdir()
    full.mkdir()
    (full / "log").write_text("said", encoding="utf-8")

    await _opened(sandbox, f"echo x >{_ARTIFACTS}/.x")
    await sandbox.download_dir(_AGENT, tmp_path / "out")
    await sandbox.upload_dir(here, _AGENT)
    assert await sandbox.is_dir(_AGENT, user="root")
    assert (list((tmp_path / "out").iterdir()), asked) == ([], [])
    # It is asked about all else: another user may not reach it, and the other one is not empty.
    assert await sandbox.is_dir(_AGENT, user="1234:1234")
    assert await sandbox.is_dir(_ARTIFACTS)
    await sandbox.download_dir(_ARTIFACTS, tmp_path / "artifacts")
    assert (tmp_path / "artifacts" / ".x").read_text(encoding="utf-8") == "x\n"
    assert asked == ["path_kind", "path_kind", f"download_dir {_ARTIFACTS}"]

    # What comes in later is found: by an upload, by a command, and by directories that are changed.
    await sandbox.upload_dir(full, f"{_AGENT}/below")
    await sandbox.download_dir(_AGENT, tmp_path / "out")
    assert (tmp_path / "out" / "below" / "log").read_text(encoding="utf-8") == "said"
    await _opened(sandbox, f"rm -r {_AGENT}/below")
    await output(sandbox, f"echo late >{_AGENT}/late")
    await sandbox.download_dir(_AGENT, tmp_path / "out")
    assert (tmp_path / "out" / "late").read_text(encoding="utf-8") == "late\n"
    await _opened(sandbox, f"rm {_AGENT}/late")
    await sandbox.reset_dirs(remove_dirs=[_AGENT], create_dirs=[])
    assert not await sandbox.is_dir(_AGENT, user="root")
    # A link that leads to an empty directory is none.
    await _opened(sandbox, f"mkdir -p /srv/empty; ln -s /srv/empty {_AGENT}")
    asked.clear()
    await sandbox.download_dir(_AGENT, tmp_path / "linked")
    assert asked == [f"download_dir {_AGENT}"]


_DEEP = "import os; os.chdir('/tests'); [(os.mkdir('d'), os.mkdir('e'), os.chdir('d')) for _ in range(500)]"
_PLANTS = {
    "files": "echo 1 > /logs/verifier/reward.txt; touch /tests/.hidden",
    "a deep tree": f'python3 -c "{_DEEP}"',
    "closed directories": "mkdir -p /tests/a/b && touch /tests/a/b/c && chmod 000 /tests/a/b /tests/a /tests",
    "links": "rm -r /tests /logs/verifier; ln -s /kept /tests; ln -s /kept /logs/verifier",
    "a link on the way": "rm -r /logs; mkdir -p /away/verifier; touch /away/verifier/f; ln -s /away /logs",
    "a way to descriptors": "rm -r /logs/verifier /logs; ln -s /proc/self/fd/5 /tests/x; ln -s /proc/self/fd/5 /logs",
    "files in their place": "rm -r /tests /logs/verifier; touch /tests /logs/verifier",
    "nothing": "rm -r /tests /logs",
    "no tools": "rm -rf /usr/bin/find /usr/bin/rm /usr/bin/mkdir /usr/bin/chmod",
    "somebody else's": "chown -R 1234:1234 /logs /tests; chmod 700 /logs/verifier /tests",
}


@pytest.mark.parametrize("plant", _PLANTS)
async def test_the_verifiers_directories_are_emptied_whatever_is_in_their_place(
    sandbox: LocalEnvironment, plant: str
) -> None:
    await output(sandbox, "mkdir -p /logs/verifier /tests /kept; touch /kept/file")
    await sandbox.exec(_PLANTS[plant])
    await cleanup.reset_verifier_dirs(sandbox, cleanup.VerifierDirsReset((_OUTPUT, _TESTS), ""))
    listed = await output(sandbox, "stat -c '%a %u %F' /logs/verifier/ /tests/; ls -A /logs/verifier /tests; ls /kept")
    assert listed.split("\n") == [
        "777 0 directory",
        "755 0 directory",
        "/logs/verifier:",
        "",
        "/tests:",
        "file",
    ]
    await cleanup.reset_verifier_dirs(sandbox, cleanup.VerifierDirsReset((_OUTPUT, _TESTS), "dev"))
    assert await output(sandbox, "stat -c '%a %U' /logs/verifier/ /tests/") == "755 dev\n755 root"


_LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
"""Its first thread ends and the other runs on."""

_RELAY = """
import asyncio
import os
import signal
import subprocess
import sys
while os.fork() == 0:
    os.setsid()
"""
"""Each process starts the next and ends."""


@_BY_BOTH
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program knows x86_64's number of exit(2)")
@pytest.mark.parametrize("program", [_LEADERLESS, _RELAY])
async def test_nothing_that_hides_is_taken_for_nobody_and_all_is_stopped(
    sandbox: LocalEnvironment, program: str
) -> None:
    baseline = await cleanup.take_baseline(sandbox)
    await output(sandbox, f"setsid python3 -c '{program}' >/dev/null 2>&1 & sleep 0.3")
    stopped = await cleanup.stop_processes(sandbox, baseline)
    assert stopped.processes >= 1
    assert await output(sandbox, "ps -eLo comm=") == "init\nps"


_ENDED = """
import os, sys
sys.path[:0] = sys.argv[1:]
from grading import cleanup
scripts = ("exit", "sleep 60; : /run/terminal", "sleep 60; :")
pids = [os.posix_spawn("/bin/sh", ["sh", "-c", script], {}, setsid=True) for script in scripts]
os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
while not all(cleanup._words(pid) for pid in pids[1:]):
    pass  # they execute already, and have no command line yet
counted = cleanup._Counted("/run/terminal", 0)
counted.add({pid: cleanup._Process(os.getpid(), f"{pid}:0") for pid in pids})
print(len(counted.identities))
for pid in pids[1:]:
    os.killpg(pid, 9)
"""


def test_what_ended_by_itself_is_not_counted_as_stopped() -> None:
    supervisor = ROOT / "harbor_gym" / "sandboxes" / "supervisor" / "program"
    program = [sys.executable, "-c", _ENDED, str(supervisor), str(supervisor.parents[1] / "archive")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")
