"""A local sandbox's limits of memory, processes, processor time and files. And nothing is left."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import ResourceMode

from harbor_gym._runtime.owners import owner_label
from harbor_gym.errors import SandboxLostError, SandboxMemoryError, UsageError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid
from harbor_gym.sandboxes.supervisor.program.core_files import PATTERN
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.sandboxes.program import run_in_program

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_KILLS = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null | grep '^oom_kill '"
_MANY = (
    "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = bytearray(30 << 20); import time; time.sleep(60)' & done; "
    "wait -n; echo $?; kill -9 $(jobs -p)"
)
_BOMB = 'python3 -c "x = bytearray(300 << 20); import time; time.sleep(20)"'


def _groups(owner: str) -> list[Path]:
    return [path for place in cgroups.places().values() for path in place.directory.glob(f"harbor-gym-{owner}-*")]


def _supervisor() -> int:
    """Return the pid of the one supervisor that this process has."""
    (found,) = Path(f"/proc/{forkserver_pid()}/task/{forkserver_pid()}/children").read_text(encoding="utf-8").split()
    return int(found)


def _init() -> int:
    """Return the pid, as seen from here, of the first process of this process's one sandbox."""
    (first,) = Path(f"/proc/{_supervisor()}/task/{_supervisor()}/children").read_text(encoding="utf-8").split()
    return int(first)


@pytest.mark.usefixtures("control_groups")
async def test_who_needs_more_memory_is_killed_and_the_sandbox_goes_on(tmp_path: Path) -> None:
    config = {"memory_mb": 96, "storage_mb": 512}
    async with running(make_sandbox(tmp_path, config=config)) as sandbox:
        await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        # Files have a bound of their own, and do not count.
        await output(sandbox, "head -c 150M /dev/zero > /file; python3 -c 'bytearray(64 << 20)'")
        assert await output(sandbox, _KILLS) == "oom_kill 0"
        bystander = asyncio.ensure_future(sandbox.exec("sleep 1; echo spared"))
        result = await sandbox.exec(f"rm /file; {_BOMB}; echo $?")
        assert result.stdout == "137\n"
        assert "Killed" in (result.stderr or "")
        assert (await bystander).stdout == "spared\n"
        # A process entered from outside is bounded too.
        entered = await asyncio.create_subprocess_exec(*sandbox.exec_argv(f"{_BOMB} & wait $!"))
        assert await entered.wait() == 137
        assert await output(sandbox, _KILLS) == "oom_kill 2"
        assert await output(sandbox, "pgrep -x sleep | wc -l") == "1"
    assert _groups(owner_label()) == []


@pytest.mark.usefixtures("control_groups")
async def test_no_lack_of_memory_ends_the_sandbox_itself(tmp_path: Path) -> None:
    """A policy that could lose its sandbox at will would never be graded badly."""
    async with running(make_sandbox(tmp_path, config={"memory_mb": 64})) as sandbox:
        first = "for file in oom_score_adj oom_adj; do echo 15 > /proc/1/$file; umount /proc/1/$file; done"
        assert "Read-only" in ((await sandbox.exec(first)).stderr or "")
        assert await output(sandbox, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj") == "0\n500"
        assert await output(sandbox, _MANY) == "137"
        await output(sandbox, f"{_KILLS} | grep -v ' 0$'")
        assert (await sandbox.exec("echo 1 > /sys/fs/cgroup/memory/memory.force_empty; mv /sys /away")).return_code != 0

        # Only from outside can it be the first that the kernel kills; then the caller learns why it went.
        await asyncio.to_thread(Path(f"/proc/{_init()}/oom_score_adj").write_text, "1000")
        with pytest.raises(SandboxMemoryError, match="needed more memory"):
            await sandbox.exec(_MANY)
        with pytest.raises(SandboxMemoryError):
            await sandbox.exec("true")


@pytest.mark.usefixtures("control_groups")
async def test_a_fork_bomb_fills_its_sandbox_only(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, max_processes=60)) as sandbox:
        result = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 1", timeout_sec=PATIENCE_SEC)
        assert "Resource temporarily unavailable" in (result.stderr or "")
        # The caller still gets in, and can make an end of it without a further process.
        await sandbox.exec("kill -9 -1", timeout_sec=PATIENCE_SEC)
        # The dead are still listed until they are reaped.
        count = "for i in {1..600}; do n=$(ps -e --no-headers | wc -l); ((n < 10)) && break; sleep 0.1; done; echo $n"
        assert int(await output(sandbox, count)) < 10


@pytest.mark.usefixtures("control_groups")
@pytest.mark.parametrize(
    ("cpus", "options", "expected"),
    [(1, {}, "100000"), (None, {"processor_time": 0.25}, "25000"), (1, {"processor_time": 4}, "100000")],
)
async def test_processor_time_is_bounded(
    tmp_path: Path, cpus: int | None, options: dict[str, Any], expected: str
) -> None:
    async with running(make_sandbox(tmp_path, config={"cpus": cpus}, **options)) as sandbox:
        every = str(os.cpu_count()) if cpus is None else "1"
        assert await output(sandbox, "nproc") == every, "a share of time changes no count"
        (group,) = cgroups.places()["cpu"].directory.glob(f"harbor-gym-{owner_label()}-*")
        quota = group / ("cpu.cfs_quota_us" if cgroups.places()["cpu"].version == 1 else "cpu.max")
        assert quota.read_text().split()[0] == expected
        await output(sandbox, "timeout 0.3 sh -c 'while :; do :; done' || :")
        # Periods are counted while processes of a group with a quota run. How many are cut depends on the neighbours.
        counted = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        assert int(counted["nr_periods"]) > 0


_COUNTS = (
    "nproc; getconf _NPROCESSORS_ONLN; lscpu --parse=CPU | grep -vc '^#'; "
    "python3 -c 'import os; print(len(os.sched_getaffinity(0)), os.cpu_count())'"
)
_ALLOWED = "grep Cpus_allowed_list /proc/1/status /proc/self/status | cut -f 2 | sort -u"


@pytest.mark.usefixtures("two_processors")
async def test_programs_count_the_processors_of_the_task(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, config={"cpus": 1})) as sandbox:
        assert set((await output(sandbox, _COUNTS)).split()) == {"1"}
        (allowed,) = (await output(sandbox, _ALLOWED)).splitlines()
        entered = sandbox.exec_argv(_ALLOWED)
        assert (await asyncio.to_thread(subprocess.check_output, entered, text=True)).split() == [allowed]
        await sandbox.enter_verifier_view([])
        assert set((await output(sandbox, _COUNTS)).split()) == {"1"}
        assert await output(sandbox, _ALLOWED) == allowed


@pytest.mark.usefixtures("two_processors")
async def test_sandboxes_are_spread_over_the_processors(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "first", config={"cpus": 1})) as first:
        taken = await output(first, _ALLOWED)
        for name in ("second", "third"):  # the second's end frees its processor
            async with running(make_sandbox(tmp_path / name, config={"cpus": 1})) as other:
                assert await output(other, _ALLOWED) != taken
        machine = str(len(os.sched_getaffinity(0)))
        for name, cpus, processor_set in (("whole", 64, True), ("off", 1, False)):
            sandbox = make_sandbox(tmp_path / name, config={"cpus": cpus}, processor_set=processor_set)
            async with running(sandbox) as other:
                assert await output(other, "nproc") == machine


async def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    fill = "i=0; while : > /f/$((i++)); do :; done 2>&1 | tail -n 1; ls /f | wc -l"
    async with running(make_sandbox(tmp_path, config={"storage_mb": 32})) as sandbox:
        for place in ("/filled", "/tmp/filled", "/dev/shm/filled"):
            result = await sandbox.exec(f"head -c 100M /dev/zero > {place}; s=$?; rm -f {place}; exit $s")
            assert "No space left" in (result.stderr or "")
        printed = await output(sandbox, f"mkdir /f; {fill}", timeout_sec=PATIENCE_SEC)
        assert "No space left" in printed
        assert 10_000 < int(printed.split()[-1]) < 20_000
        await output(sandbox, "rm -r /f && touch /room-again")


async def test_without_control_groups_a_process_is_bounded_and_a_policy_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> dict[str, cgroups.Place]:
        return {}

    monkeypatch.setattr(cgroups, "places", none)
    async with running(make_sandbox(tmp_path, config={"memory_mb": 64, "cpus": 1})) as sandbox:
        result = await sandbox.exec("python3 -c 'bytearray(200 << 20)'; echo on")
        assert "MemoryError" in (result.stderr or "")
        assert result.stdout == "on\n"
    assert "no control groups can be made here for memory, pids, cpu" in caplog.text
    assert not LocalEnvironment.resource_capabilities().memory_limit
    with pytest.raises(ValueError, match="memory resource limits"):
        make_sandbox(tmp_path, config={"memory_mb": 64}, memory_enforcement_policy=ResourceMode.LIMIT)


@pytest.mark.usefixtures("control_groups")
def test_harbor_learns_what_can_be_enforced(tmp_path: Path) -> None:
    make_sandbox(tmp_path, config={"memory_mb": 64, "cpus": 1}, memory_enforcement_policy=ResourceMode.LIMIT,
                 cpu_enforcement_policy=ResourceMode.LIMIT)  # fmt: skip
    with pytest.raises(ValueError, match="memory resource requests"):
        make_sandbox(tmp_path, config={"memory_mb": 64}, memory_enforcement_policy=ResourceMode.REQUEST)
    with pytest.raises(UsageError, match="max_processes"):
        make_sandbox(tmp_path, max_processes=0)


@pytest.mark.usefixtures("control_groups")
async def test_groups_of_a_killed_supervisor_are_removed_by_its_owner(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, config={"memory_mb": 64, "cpus": 1})) as sandbox:
        assert len(_groups(owner_label())) == 3
        os.kill(_supervisor(), signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await sandbox.exec("sleep 20")
    assert _groups(owner_label()) == []


@pytest.mark.usefixtures("control_groups")
def test_groups_of_a_dead_owner_are_removed_and_those_of_a_living_one_stay() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from harbor_gym._runtime.owners import owner_label; print(owner_label())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    directory = cgroups.places()["pids"].directory
    dead, alive = (
        directory / f"harbor-gym-{owner}-1" for owner in (ended.stdout.strip(), f"{owner_label()}-{time.time_ns()}")
    )
    dead.mkdir()
    alive.mkdir()
    try:
        cgroups.remove_groups()
        assert not dead.exists()
        assert alive.exists()
    finally:
        alive.rmdir()


_MOUNTINFO = """\
25 1 0:23 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate
32 31 0:29 /docker/abc /mnt/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
"""


@pytest.mark.parametrize(
    ("own", "version", "expected"),
    [
        ("0::/user.slice/session-1.scope\n", 2, "user.slice"),
        ("0::/\n", 2, "."),
        ("4:cpu,cpuacct:/docker/abc/x\n0::/\n", 1, "x"),
    ],
)
def test_a_place_is_found_in_either_version_of_control_groups(
    tmp_path: Path, own: str, version: int, expected: str
) -> None:
    """Files stand for version 2's kernel, whose limits this machine may not have: only the search is tested with it."""
    tree = tmp_path / "tree"
    for name in (".", "user.slice", "user.slice/session-1.scope", "x"):
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name / "cgroup.subtree_control").write_text("" if name.endswith("scope") else "cpu memory pids")
    mounts = cgroups.parse_mounts(_MOUNTINFO.replace("/sys/fs/cgroup", str(tree)).replace("/mnt/cpu", str(tree)))
    tried: list[Path] = []

    def is_usable(_controller: str, _version: int, directory: Path) -> bool:
        tried.append(directory)
        return (directory / "cgroup.subtree_control").read_text() != ""

    place = cgroups.first_usable("cpu", [mount for mount in mounts if mount.version == version], own, is_usable)
    assert place == cgroups.Place(version, tree / expected)  # pyright: ignore[reportArgumentType]  # 1 or 2
    assert tried[-1] == tree / expected


_LIMITS = """
import json, resource, sys
import core_files
core_files.PATTERN = sys.argv[1]  # the machine's own is one for all
import child
print(json.dumps({"core": resource.RLIMIT_CORE, "limits": child.limits()}))
"""


@pytest.mark.parametrize(("pattern", "is_handled"), [("|/bin/handler %p", True), ("@socket", True), ("core", False)])
def test_no_crash_inside_starts_a_program_of_the_machine(tmp_path: Path, pattern: str, *, is_handled: bool) -> None:
    """The kernel starts none for a hard limit of 1, and does so for 0."""
    (tmp_path / "pattern").write_text(f"{pattern}\n", encoding="utf-8")
    done = run_in_program(_LIMITS, str(tmp_path / "pattern"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ([found["core"], 1, 1] in found["limits"]) == is_handled


async def test_all_limits_of_the_sandbox_are_its_processes(tmp_path: Path) -> None:
    done = run_in_program(_LIMITS, PATTERN)
    kinds = {resource.RLIMIT_NOFILE: "Max open files", resource.RLIMIT_CORE: "Max core file size"}
    async with running(make_sandbox(tmp_path)) as sandbox:
        shown = await output(sandbox, "cat /proc/1/limits /proc/self/limits")
    for kind, *expected in json.loads(done.stdout)["limits"]:
        lines = [line.split()[-3:-1] for line in shown.splitlines() if line.startswith(kinds[kind])]
        assert lines == [list(map(str, expected))] * 2
