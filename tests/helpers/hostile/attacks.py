"""Attacks by a hostile root of a local sandbox, which must all fail for every owner of the sandbox.

Each function is one test. As a program, for an ordinary user, it runs all and prints the failures as JSON.
"""

# ruff: noqa: ASYNC240  # small files of this machine
import asyncio
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

from harbor_gym._runtime.procfs import descendants
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import cgroups
from tests.helpers.harbor_trials import run_episode
from tests.helpers.hostile.behaviours import behaviours_of, run_as_program
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import DOCKERFILE, make_sandbox, output, running
from tests.helpers.tasks import write_task

_INSIDE = Path(__file__).with_name("attackers")
"""Programs that run in the sandbox, by its own Python."""

_HOST_PROGRAMS = ("bwrap", "slirp4netns", "unshare", "nsenter", "setpriv", "buildah")
_SHELL = "/usr/bin/bash"


def _has_own_ids(sandbox: LocalEnvironment) -> bool:
    """Return whether root inside has another user id outside."""
    return bool(sandbox._running()._require_target().ids)  # pyright: ignore[reportPrivateUsage]


async def _bring(sandbox: LocalEnvironment, name: str) -> str:
    """Put an attacker's program into the sandbox and return its path."""
    await sandbox.upload_file(_INSIDE / name, f"/attack/{name}")
    return f"/attack/{name}"


# --- the machine's programs ---------------------------------------------------------------------------------------


def _host_files() -> list[Path]:
    """Return the programs and libraries of this machine that a sandbox's supervisor runs from."""
    mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()}
    libraries = [Path(path) for path in mapped if "libpython" in path and Path(path).exists()]
    programs = [Path(found) for name in _HOST_PROGRAMS if (found := shutil.which(name))]
    return [Path(sys.executable).resolve(), *libraries, *(path.resolve() for path in programs)]


def _state(path: Path) -> tuple[object, ...]:
    status = path.stat()
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    owner = (status.st_uid, status.st_gid, status.st_mode, status.st_ino, status.st_ctime_ns)
    return (path, *owner, sorted(os.listxattr(path)), content)


@contextlib.contextmanager
def _host_unharmed():
    before = list(map(_state, _host_files()))
    yield
    assert list(map(_state, _host_files())) == before


async def _plant_python(sandbox: LocalEnvironment) -> None:
    """Put the files there with which this machine's Python would start, were it ever executed inside."""
    for library in _host_files():
        if ".so" in library.name:
            await sandbox.upload_file(library, str(library))
    stdlib = Path(sysconfig.get_path("stdlib"))
    for module in stdlib.glob("*.py"):
        if module.stem in ("os", "site", "codecs", "io", "abc", "stat", "posixpath", "genericpath"):
            await sandbox.upload_file(module, f"{stdlib}/{module.name}")
    await sandbox.upload_dir(stdlib / "encodings", f"{stdlib}/encodings")
    await sandbox.exec(f"mkdir -p {stdlib}/lib-dynload")


async def _use_shell(sandbox: LocalEnvironment) -> None:
    """Start the sandbox's shell by each call that can; its result does not matter."""
    with contextlib.suppress(SandboxError):
        await sandbox.exec("echo called", timeout_sec=5)
    argv = sandbox.exec_argv("echo called")
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await asyncio.wait_for(process.communicate(), PATIENCE_SEC)
    with contextlib.suppress(SandboxError):
        await sandbox.is_dir("/attack")


async def a_script_interpreted_by_its_own_starter_starts_no_program_of_the_host(
    sandbox: LocalEnvironment, scratch: Path
) -> None:
    """CVE-2019-5736: the kernel executes the script's starter in the sandbox, with the sandbox's libraries."""
    await _plant_python(sandbox)
    attack = await _bring(sandbox, "own_interpreter.py")
    # It works where there is something to get: the same script, started by the sandbox's own Python.
    start = f"import os; os.execv('{attack}', ['x'])"
    await output(sandbox, f'chmod 755 {attack}; cp $(readlink -f $(which python3)) /py; /py -c "{start}"')
    got = json.loads(await output(sandbox, "cat /attack/report; rm /attack/report"))
    assert got["chmod"] == got["chown"] == got["setxattr"] == "done", got
    assert got["exe"].endswith("/py"), got
    with _host_unharmed():
        await output(sandbox, f"cp --remove-destination {attack} {_SHELL}")
        await _use_shell(sandbox)
        await sandbox.upload_file(_INSIDE / "hunter.py", "/attack/other")
        await sandbox.download_file("/attack/other", scratch / "other")
        await sandbox.download_dir("/attack", scratch / "attack")
        assert not (scratch / "attack" / "report").exists(), (scratch / "attack" / "report").read_text()


async def a_hostile_image_or_setup_command_starts_no_program_of_the_host(
    _sandbox: LocalEnvironment, scratch: Path
) -> None:
    lines = (_INSIDE / "own_interpreter.py").read_text()
    plant = f"cat > /new << 'END'\n{lines}END\nchmod 755 /new && mv /new {_SHELL}"
    with _host_unharmed():
        async with running(make_sandbox(scratch / "set-up", setup_command=plant)) as sandbox:
            await _plant_and_use(sandbox, scratch / "set-up-seen")
        context = scratch / "image" / "environment"
        context.mkdir(parents=True)
        shutil.copy(_INSIDE / "own_interpreter.py", context / "shell")
        dockerfile = f"{DOCKERFILE}COPY --chmod=755 shell {_SHELL}\n"
        async with running(make_sandbox(scratch / "image", dockerfile=dockerfile)) as sandbox:
            await _plant_and_use(sandbox, scratch / "image-seen")


async def _plant_and_use(sandbox: LocalEnvironment, seen: Path) -> None:
    (seen / "attack").mkdir(parents=True)
    await sandbox.upload_dir(seen / "attack", "/attack")
    await _use_shell(sandbox)
    await sandbox.download_dir("/attack", seen)
    assert not (seen / "report").exists(), (seen / "report").read_text()


async def nothing_of_the_host_is_reached_through_proc(sandbox: LocalEnvironment, scratch: Path) -> None:
    """One process of root's opens every file that any process has, while others enter by every way."""
    hunter = await _bring(sandbox, "hunter.py")
    assert hunter == "/attack/hunter.py"
    await output(sandbox, HUNT, timeout_sec=PATIENCE_SEC)
    source = scratch / "source"
    source.mkdir()
    for number in range(20):
        (source / str(number)).write_bytes(b"x" * 20_000)
    with _host_unharmed():
        for number in range(12):
            await sandbox.exec("true", user="dev" if number % 2 else "root")
            await sandbox.upload_dir(source, "/source")
            await sandbox.download_dir("/source", scratch / "back")
            await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC) if number == 5 else None
            argv = sandbox.exec_argv("sleep 0.05")
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
            process = await asyncio.create_subprocess_exec(*argv, **pipes)
            await process.communicate()
            assert process.returncode == 0
        await output(
            sandbox, "touch /attack/stop; while [ ! -e /attack/found ]; do sleep 0.05; done", timeout_sec=PATIENCE_SEC
        )
    found = json.loads(await output(sandbox, "cat /attack/found"))
    assert found["processes"] > 10, found
    assert found["control"] == ["written", "chmod", "chown"], found  # its own files
    # The launcher is a sealed file in memory.
    foreign = [item for item in found["foreign"] if item["name"] != "/memfd:launch (deleted)"]
    assert foreign == [], foreign
    assert [item for item in found["foreign"] if "written" in item["done"]] == []


async def the_launcher_can_be_neither_changed_nor_taken_away(sandbox: LocalEnvironment, scratch: Path) -> None:
    """A shell that is a script run by the launcher, and starts itself again and again: there is time to reach it."""
    attack = await _bring(sandbox, "launcher.py")
    start = f"setsid python3 {attack} >/dev/null 2>&1 & while [ ! -e /attack/waits ]; do sleep 0.05; done"
    await output(sandbox, start, timeout_sec=PATIENCE_SEC)
    with contextlib.suppress(SandboxError):
        await sandbox.exec("true", timeout_sec=4)
    result = scratch / "result"
    async with asyncio.timeout(PATIENCE_SEC):  # no command runs before the shell is restored
        while not result.exists():
            await asyncio.sleep(0.1)
            with contextlib.suppress(SandboxError):
                await sandbox.download_file("/attack/result", result)
    printed = json.loads(result.read_text())
    assert printed["seen"] > 0, "the attack did not see the launcher run"
    assert "written" not in printed["done"]
    assert await output(sandbox, "echo still") == "still"
    assert await output(sandbox, "echo still", user="dev") == "still"


_TRAINERS = """
import asyncio, os, sys
from pathlib import Path
from tests.helpers.hostile.attacks import HUNT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, output

async def train(directory):
    sandbox = make_sandbox(Path(directory))
    await sandbox.start(force_build=False)
    await sandbox.upload_file(sys.argv[1], "/attack/hunter.py")
    await output(sandbox, HUNT, timeout_sec=PATIENCE_SEC)
    print(os.getpid(), flush=True)
    while True:
        await sandbox.exec("true")

for directory in sys.argv[2:]:
    if os.fork() == 0:
        asyncio.run(train(directory))
for _ in sys.argv[2:]:
    os.wait()
"""
"""Trainers, each of which prints its id once the attack on it runs. One process makes them: imports take a second."""
HUNT = "setsid python3 /attack/hunter.py >/dev/null 2>&1 & while [ ! -e /attack/hunts ]; do sleep 0.05; done"
_KILLS = 4


async def who_waits_for_the_death_of_all_has_nothing_to_write_to(_sandbox: LocalEnvironment, scratch: Path) -> None:
    """A program that nobody executes any more can be written to: trainer, forkserver, supervisor are killed at once."""

    async def kill(trainer: int, delay_sec: float) -> None:
        await asyncio.sleep(delay_sec)
        killed = [pid for pid in sorted(descendants(trainer)) if _is_ours(pid)]
        assert killed
        for pid in (trainer, *killed):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(1000):
            if not any(Path(f"/proc/{pid}/exe").is_symlink() for pid in killed):
                break
            await asyncio.sleep(0.01)

    with _host_unharmed():
        directories = [str(scratch / f"kill-{number}") for number in range(_KILLS)]
        words = ("-c", _TRAINERS, str(_INSIDE / "hunter.py"), *directories)
        trainers = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
        assert trainers.stdout is not None
        async with asyncio.TaskGroup() as group:
            for number in range(_KILLS):
                group.create_task(kill(int(await trainers.stdout.readline()), 0.05 * number))
        assert await trainers.wait() == 0


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


# --- root's identity ----------------------------------------------------------------------------------------------


async def _outside_uid(mark: str) -> int:
    """Return the host's uid of the process with the mark for an argument; one started behind & may come late."""
    async with asyncio.timeout(PATIENCE_SEC):
        while (uid := _find_outside_uid(mark)) is None:  # noqa: ASYNC110 - a process that begins sends no event
            await asyncio.sleep(0.02)
        return uid


def _find_outside_uid(mark: str) -> int | None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                return int(path.with_name("status").read_text().partition("\nUid:\t")[2].split()[0])
    return None


async def root_inside_is_nobody_outside(sandbox: LocalEnvironment, scratch: Path) -> None:
    namespace = await output(sandbox, "readlink /proc/self/ns/user")
    assert namespace != str(Path("/proc/self/ns/user").readlink())
    async with running(make_sandbox(scratch / "other")) as other:
        assert await output(other, "readlink /proc/self/ns/user") != namespace
        if not _has_own_ids(sandbox):
            return
        ranges: list[range] = []
        for number, box in enumerate((sandbox, other)):
            mark = f"{_unique() + number}"
            await output(box, f"setsid sleep {mark} >/dev/null 2>&1 &")
            extents = [[*map(int, line.split())] for line in (await output(box, "cat /proc/self/uid_map")).splitlines()]
            assert [inside for inside, _, _ in extents] == [0, 1 << 16]
            assert await output(box, "cat /proc/self/gid_map") == await output(box, "cat /proc/self/uid_map")
            assert await _outside_uid(mark) == extents[0][1] >= 1 << 20
            ranges += [range(outside, outside + count) for _, outside, count in extents]
        ranges.sort(key=lambda ids: ids.start)
        assert all(one.stop <= next_one.start for one, next_one in pairwise(ranges))
        assert await output(sandbox, "stat -c %u:%g / /etc/passwd /home/dev | sort | uniq -c | wc -l") == "2"


def _unique() -> int:
    return 10**8 + int.from_bytes(os.urandom(3))


async def what_the_kernel_counts_ends_at_the_sandboxs_own_limit(sandbox: LocalEnvironment, _scratch: Path) -> None:
    attack = await _bring(sandbox, "counts.py")
    start = f"setsid python3 {attack} > /attack/counts 2>&1 & while ! grep -q end /attack/counts; do sleep 0.1; done"
    await output(sandbox, start, timeout_sec=PATIENCE_SEC)
    got = json.loads((await output(sandbox, "cat /attack/counts")).splitlines()[0])
    # It holds all that it got until the sandbox ends.
    assert 0 < got["inotify"] <= 128
    assert 0 < got["terminals"] <= 64
    assert got["user namespaces"] == got["nested"] == 0
    assert got["aio"] == "ENOSYS"
    libc = ctypes.CDLL(None, use_errno=True)
    master, slave = os.openpty()
    os.close(master)
    os.close(slave)
    if _has_own_ids(sandbox):
        handle = libc.inotify_init1(os.O_CLOEXEC)
        assert handle >= 0, os.strerror(ctypes.get_errno())
        os.close(handle)
        timer = ctypes.c_void_p()
        assert got["timers"] > 100
        assert libc.timer_create(0, None, ctypes.byref(timer)) == 0, os.strerror(ctypes.get_errno())
        libc.timer_delete(timer)
        assert got["queued signals"] >= 0


_OPEN_FILES = "grep -h 'Max open files' /proc/[0-9]*/limits | awk '{print $4, $5}' | sort -u"
_RAISE_OPEN_FILES = "import resource; [resource.prlimit(pid, resource.RLIMIT_NOFILE, (9999, 9999)) for pid in (%s,)]"


async def no_process_has_more_open_files_than_ordinary_programs_need(sandbox: LocalEnvironment, _scratch: Path) -> None:
    """The machine has one number of open files for all: each way in, and the first process, has Linux's own limits."""
    assert await output(sandbox, _OPEN_FILES) == "1024 4096"
    entered = await asyncio.create_subprocess_exec(*sandbox.exec_argv(_OPEN_FILES), stdout=asyncio.subprocess.PIPE)
    assert (await entered.communicate())[0] == b"1024 4096\n"
    assert await output(sandbox, "ulimit -n 4096; ulimit -n") == "4096"
    for who in (0, 1):
        raised = await sandbox.exec(f"python3 -c '{_RAISE_OPEN_FILES % who}'")
        assert "PermissionError" in (raised.stderr or ""), raised
    assert "not permitted" in ((await sandbox.exec("ulimit -n 4097")).stderr or "")


async def descriptors_under_way_stop_nobody_elses_commands(_sandbox: LocalEnvironment, scratch: Path) -> None:
    """The kernel counts them by user, and root inside may be the trainer: its limit is an ordinary user's here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with (
            running(make_sandbox(scratch / "attacker")) as attacker,
            running(make_sandbox(scratch / "x")) as other,
        ):
            attack = await _bring(attacker, "descriptors.py")
            start = f"setsid python3 {attack} > /attack/sent 2>&1 & while [ ! -s /attack/sent ]; do sleep 0.05; done"
            await output(attacker, f"{start}; grep ETOOMANYREFS /attack/sent", timeout_sec=PATIENCE_SEC)
            for sandbox in (attacker, other):
                assert await output(sandbox, "echo goes on") == "goes on"
                await sandbox.upload_file(_INSIDE / "hunter.py", "/attack/other")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def what_sockets_hold_counts_as_memory(_sandbox: LocalEnvironment, scratch: Path) -> None:
    if "memory" not in cgroups.places():
        return  # no number bounds the sandbox's memory here
    async with running(make_sandbox(scratch / "small", config={"memory_mb": 64})) as sandbox:
        attack = await _bring(sandbox, "sockets.py")
        printed = await sandbox.exec(f"python3 {attack}", timeout_sec=PATIENCE_SEC)
        # A process that version 2's limit has killed prints nothing.
        assert int(printed.stdout or 0) < 64 << 20, printed
        assert printed.return_code in (0, 128 + signal.SIGKILL), printed


async def setuid_programs_work_and_give_nothing_outside(sandbox: LocalEnvironment, _scratch: Path) -> None:
    assert await output(sandbox, "su dev -c 'id -un'; id -un") == "dev\nroot"
    await output(sandbox, "cp /usr/bin/id /own-id; chmod 6755 /own-id; cp /bin/bash /sh; chmod 4755 /sh")
    assert (
        await output(sandbox, "/own-id -u; /own-id -g; /sh -p -c 'head -c 5 /etc/shadow'", user="dev") == "0\n0\nroot:"
    )
    rights = await output(sandbox, "/sh -p -c 'grep CapBnd /proc/self/status'", user="dev")
    assert int(rights.split()[1], 16) == sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
    mark = str(_unique())
    await output(sandbox, f"/sh -p -c 'setsid sleep {mark} >/dev/null 2>&1 &'", user="dev")
    if _has_own_ids(sandbox):
        assert await _outside_uid(mark) >= 1 << 20
    for command in (
        "echo 1 > /proc/sys/vm/swappiness",
        "mknod /disk b 254 0",
        "mount -t tmpfs x /mnt",
        "cat /proc/1/mem",
    ):
        assert (await sandbox.exec(f"/sh -p -c '{command}'", user="dev")).return_code != 0, command


# --- the first process --------------------------------------------------------------------------------------------

_OF_PROCESS = ("mem", "maps", "exe", "root", "cwd", "fd/0", "fdinfo", "environ", "auxv", "ns/mnt", "ns/user")


async def nobody_opens_the_first_process(sandbox: LocalEnvironment, _scratch: Path) -> None:
    attack = await _bring(sandbox, "first_process.py")
    printed = json.loads(await output(sandbox, f"python3 {attack} {' '.join(_OF_PROCESS)}"))
    assert set(printed["neighbour"].values()) == {"opened"}, printed["neighbour"]
    assert set(printed["init"].values()) <= {"EACCES", "EPERM"}, printed["init"]
    assert printed["written"] in ("EACCES", "EPERM")
    await output(sandbox, "kill -KILL 1; kill -STOP 1; kill -TERM 1; kill -INT 1")
    assert await output(sandbox, "echo lives") == "lives"


async def who_attacks_the_first_process_earns_nothing(_sandbox: LocalEnvironment, scratch: Path) -> None:
    """A process that survives the clean-up could rewrite the reward; the first process survives it."""
    task_dir = write_task(scratch / "task")
    program = (_INSIDE / "rewriter.py").read_text()
    keys = f"cat > /rewriter.py << 'END'\n{program}END\npython3 /rewriter.py"
    for verify_paths in ("off", "auto"):
        ends, _ = await run_episode(task_dir, [keys], sandbox="local", verify_paths=verify_paths)
        assert ends[-1][0] == 0.0


# --- ranks: which process may read another ------------------------------------------------------------------------

# In quotation marks, as the file has it: the mark alone, as a word of grep's, would be one more process to find.
_WAIT_FOR = "until grep -q '\"{}\"' /attack/found 2>/dev/null; do sleep 0.05; done"


async def a_command_in_the_view_is_closed_to_all_outside(sandbox: LocalEnvironment, _scratch: Path) -> None:
    """A survivor of the clean-up writes no verdict by /proc/PID/root of the verifier, with any user as verifier."""
    attack = await _bring(sandbox, "neighbours.py")
    theirs, roots, users = (str(_unique() * 10 + number) for number in range(3))
    watch = f"setsid python3 {attack} --watch /attack {theirs} {roots} {users} >/dev/null 2>&1 &"
    await output(sandbox, f"setsid sleep {theirs} >/dev/null 2>&1 & {watch} {_WAIT_FOR.format(theirs)}")
    await sandbox.enter_verifier_view([])
    graded = [
        asyncio.ensure_future(sandbox.exec(f"sleep {mark}; :", user=user, cwd="/"))
        for mark, user in ((roots, "root"), (users, "dev"))
    ]
    try:
        await asyncio.sleep(0)
        await output(sandbox, f"until [ $(pgrep -cf '^sleep ({roots}|{users})$') -ge 2 ]; do sleep 0.05; done", cwd="/")
        await sandbox.leave_verifier_view()
        await output(sandbox, f"{_WAIT_FOR.format(roots)}; {_WAIT_FOR.format(users)}; touch /attack/stop")
        # A zombie has no memory whose maps could be kept from anybody: no command ends while the attack looks.
        await output(sandbox, "until [ -e /attack/ended ]; do sleep 0.05; done")
    finally:
        for command in graded:
            command.cancel()
        await asyncio.wait(graded)
    found = json.loads(await output(sandbox, "cat /attack/found"))
    assert "root mem" in found[theirs], found  # the attack's goal
    assert {mark: found[mark] for mark in (roots, users)} == {roots: [], users: []}, found


async def a_set_up_ranks_between_the_policy_and_the_verifier(sandbox: LocalEnvironment, _scratch: Path) -> None:
    look = "while read -r name value; do [ $name != CapBnd: ] || echo $value; done < /proc/self/status"
    policys = int(await output(sandbox, look, cwd="/"), 16)
    await sandbox.enter_set_up_view([])
    set_ups = int(await output(sandbox, look, cwd="/"), 16)
    assert await sandbox.leave_set_up_view(timeout_sec=PATIENCE_SEC) == ""
    assert int(await output(sandbox, look, cwd="/"), 16) == policys
    await sandbox.enter_verifier_view([])
    verifiers = int(await output(sandbox, look, cwd="/"), 16)
    assert policys & ~set_ups == 0 != set_ups & ~policys
    assert set_ups & ~verifiers == 0 != verifiers & ~set_ups


_SWAPS = """\
import ctypes, os, shutil
rename = ctypes.CDLL(None).renameat2
os.makedirs("/target/deep"), os.makedirs("/target/other"), os.mkdir("/trap")
while not os.path.exists("/stop"):
    for _ in range(50):
        rename(-100, b"/target/deep", -100, b"/target/other", 2)
    if not os.path.islink("/target/deep") and not os.path.islink("/target/other"):
        shutil.rmtree("/target/other", ignore_errors=True)
        os.path.exists("/target/other") or os.symlink("../trap", "/target/other")
"""


async def who_swaps_directories_while_a_set_up_is_taken_over_gets_nothing_written(
    sandbox: LocalEnvironment, _scratch: Path
) -> None:
    await output(sandbox, f"setsid python3 -c {shlex.quote(_SWAPS)} >/dev/null 2>&1 &", cwd="/")
    await output(sandbox, "until [ -e /target/other ]; do sleep 0.05; done", cwd="/")
    for number in range(12):
        await sandbox.enter_set_up_view([])
        await output(sandbox, f"mkdir -p /target/deep; echo set > /target/deep/{number}", cwd="/")
        await sandbox.leave_set_up_view(timeout_sec=PATIENCE_SEC)  # the policy's own failure, if it is one
    assert await output(sandbox, "touch /stop; ls -A /trap", cwd="/") == ""


_SERVICE = "(while :; do sleep 0.05; done) & sleep 100000001 &"
_ENTRYPOINTS = {
    "executes its arguments": f'{_SERVICE} exec "$@"',
    "waits for them": f'{_SERVICE} "$@"; exit',
}


def _with_entrypoint(script: str, user: str = "root") -> str:
    words = json.dumps(["bash", "-c", script, "entrypoint"])
    return f"{DOCKERFILE}RUN mkdir -p /srv && chmod 777 /srv\nUSER {user}\nENTRYPOINT {words}\n"


async def what_ran_before_the_policy_is_closed_to_it(_sandbox: LocalEnvironment, scratch: Path) -> None:
    """The clean-up spares it, so a policy that became it would live through the grading."""

    async def attack(user: str, kind: str) -> None:
        made = make_sandbox(scratch / f"{user} {kind}", dockerfile=_with_entrypoint(_ENTRYPOINTS[kind], user))
        async with running(made) as sandbox:
            attack = await _bring(sandbox, "neighbours.py")
            await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
            tried = f"python3 {attack} entrypoint 100000001 infinity"
            found = json.loads(await output(sandbox, tried, user="root"))
            # Without a waiting parent Harbor's own command is not there at all.
            expected = ["100000001", "entrypoint", *(["infinity"] if kind == "waits for them" else [])]
            assert sorted(found) == expected, (user, kind, found)
            assert not any(found.values()), (user, kind, found)

    async with asyncio.TaskGroup() as group:
        for number, user in enumerate(("root", "dev")):
            # Each is an image to build, which takes an ordinary user seconds: both users and both kinds, not each pair.
            for kind in [*_ENTRYPOINTS][number : number + 1] if is_rootless() else _ENTRYPOINTS:
                group.create_task(attack(user, kind))


async def who_becomes_what_the_clean_up_spares_earns_nothing(_sandbox: LocalEnvironment, scratch: Path) -> None:
    program = (_INSIDE / "rewriter.py").read_text()
    keys = f"cat > /rewriter.py << 'END'\n{program}END\npython3 /rewriter.py entrypoint 100000001 infinity"

    async def attack(task_dir: Path, verify_paths: str | tuple[str, ...]) -> None:
        ends, _ = await run_episode(task_dir, [keys], sandbox="local", verify_paths=verify_paths)
        assert ends[-1][0] == 0.0, (task_dir, verify_paths)

    async with asyncio.TaskGroup() as group:
        for number, script in enumerate([*_ENTRYPOINTS.values()][is_rootless() :]):
            dockerfile = f"{_with_entrypoint(script)}WORKDIR /srv\n"
            task_dir = write_task(scratch / f"task-{number}", dockerfile=dockerfile, test_sh=_SLOW_TEST)
            for verify_paths in ("off", ("/srv",)):
                group.create_task(attack(task_dir, verify_paths))


_SLOW_TEST = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\nsleep 2\n"


_OWN_RANK = """
import ctypes, os, struct
os.system("cp $(readlink -f /usr/bin/grep) /tmp/raised && chmod 755 /tmp/raised")
# As setcap(8) writes it: permitted and effective, the capabilities 35 and 36.
attribute = struct.pack("<IIIII", 0x02000001, 0, 0, 0b11 << 3, 0)
os.setxattr("/tmp/raised", "security.capability", attribute)
"""


async def no_program_raises_its_rank(sandbox: LocalEnvironment, _scratch: Path) -> None:
    """Neither setuid nor file capabilities extend a rank's capabilities; a rank changes nothing else for programs."""
    await output(sandbox, f"cp /usr/bin/env /setuid; chmod 6755 /setuid; python3 -c '{_OWN_RANK}'")
    show = "grep CapBnd /proc/self/status"
    for user in ("root", "dev"):
        ranks = [await output(sandbox, f"/setuid -- {show}", user=user)]
        assert (await sandbox.exec("/tmp/raised x /etc/passwd", user=user)).return_code == 126  # EPERM
        await sandbox.enter_verifier_view([])
        ranks.append(await output(sandbox, show, user=user))
        # No ambient capability makes the loader distrust the environment, and su still becomes the named user.
        assert "AT_SECURE:            0" in await output(sandbox, "LD_SHOW_AUXV=1 /usr/bin/env true", user=user)
        await output(sandbox, "cp /usr/bin/id /own-id; chmod 4755 /own-id", user="root")
        assert await output(sandbox, "/own-id -u", user=user) == "0"
        assert await output(sandbox, "su dev -c 'id -un'", user="root") == "dev"
        await sandbox.leave_verifier_view()
        policys, verifiers = (int(line.split()[1], 16) for line in ranks)
        assert verifiers - policys == 0b11 << 35, ranks


_CALLED = "/attack/called"
_PROGRAMS = ("bash", "sh", "dash", "test", "[", "mkdir", "rm", "find", "chmod", "env")
_MARKED = f"#!/usr/bin/kept-shell\necho x >> {_CALLED}\n"
_REPLACE = (
    f"mkdir -p /attack; cp $(readlink -f /bin/bash) /usr/bin/kept-shell; printf '{_MARKED}' > /attack/marked; "
    f"chmod 755 /attack/marked; touch {_CALLED}; cp /bin/cp /bin/mv /attack; "
    f"for name in {' '.join(_PROGRAMS)}; do /attack/cp --remove-destination /attack/marked /usr/bin/new && "
    f"/attack/mv /usr/bin/new /usr/bin/$name; done"
)


async def no_program_of_the_sandbox_serves_the_directory_calls(sandbox: LocalEnvironment, scratch: Path) -> None:
    for _ in range(2):
        await output(sandbox, _REPLACE, cwd="/")
        with contextlib.suppress(SandboxError):
            await sandbox.exec("echo called", cwd="/")
        await sandbox.download_file(_CALLED, scratch / "called")
        assert (scratch / "called").read_text() == "x\n"  # the called program leaves its mark
        await _call_all(sandbox)
        await sandbox.download_file(_CALLED, scratch / "called")
        assert (scratch / "called").read_text() == "x\n"
        await sandbox.enter_verifier_view([])


async def _call_all(sandbox: LocalEnvironment) -> None:
    await sandbox.ensure_dirs(["/made/by us"])
    await sandbox.empty_dirs(["/made/by us", "/made/empty"])
    await sandbox.reset_dirs(remove_dirs=["/made/empty"], create_dirs=["/made/new"], chmod_dirs=["/made/new"])
    assert [await sandbox.is_dir(f"/made/{name}") for name in ("by us", "empty", "new")] == [True, False, True]
    assert await sandbox.is_file("/etc/passwd")


# --- files of the kernel ------------------------------------------------------------------------------------------

_HIDDEN = ("kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "kcore", "kmsg", "keys", "timer_list")


async def the_kernels_memory_is_hidden(sandbox: LocalEnvironment, _scratch: Path) -> None:
    for name in _HIDDEN:
        read = await sandbox.exec(f"head -c 100 /proc/{name} | wc -c", timeout_sec=PATIENCE_SEC)
        assert (read.stdout or "").strip() == "0", name
    assert int(await output(sandbox, "head -c 100 /proc/meminfo | wc -c")) == 100


BEHAVIOURS = behaviours_of(globals())
"""All of them."""

OF_OTHER_PROCESSES = (who_waits_for_the_death_of_all_has_nothing_to_write_to,)
"""Their sandboxes start in processes of their own, to which a change of this one's kind of sandbox does not extend."""

if __name__ == "__main__":
    run_as_program(BEHAVIOURS)
