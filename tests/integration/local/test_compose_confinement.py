"""What the services of one episode can reach, and what is left of them, on local and on Apptainer's sandboxes."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime.procfs import descendants, process_ids, read_stat
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import cgroups
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.rootless import run_rootless
from tests.helpers.sandboxes.local import make, output, running
from tests.helpers.sandboxes.program import run_in_program

pytestmark = [pytest.mark.local, pytest.mark.compose, pytest.mark.usefixtures("nothing_left")]

PUBLIC = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
NOTHING = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
LISTED = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["listed.test"])
LISTED_IPV6 = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["2001:db8::1"])
COMPOSE = """\
services:
  main:
    networks: [default, back]
    volumes: ["shared:/shared", "shared:/also:ro"]
  side: {image: debian:bookworm-slim, command: sleep 1234567, volumes: ["shared:/shared"]}
  back: {image: debian:bookworm-slim, command: sleep 1234567, networks: [back]}
networks: {default: , back: {internal: true}}
volumes: {shared: }
"""
SERVER = "$s = IO::Socket::INET->new(LocalPort => 80, Listen => 9); 1 while $s->accept"
SERVE = f"perl -MIO::Socket::INET -e '{SERVER}'"
LISTENS = "bash -c ': </dev/tcp/127.0.0.1/80' 2>/dev/null"
REACH = "timeout 2 bash -c ': </dev/tcp/{}' 2>/dev/null; echo $?"


type Sandbox = LocalEnvironment | ApptainerEnvironment

KINDS = {"local": LocalEnvironment, "apptainer": ApptainerEnvironment}


@pytest.fixture(params=["local", pytest.param("apptainer", marks=pytest.mark.apptainer)])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of sandboxes."""
    return request.param


def write(kind: str, directory: Path, compose: str = COMPOSE, **options: object) -> Sandbox:
    """Return a sandbox of a Compose file, not started yet."""
    context = directory / "environment"
    context.mkdir(parents=True)
    (context / "docker-compose.yaml").write_text(compose)
    (context / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    return make(KINDS[kind], directory, None, network="task", **options)


@pytest.mark.slow
async def test_two_episodes_and_the_machine_are_apart(kind: str, tmp_path: Path) -> None:
    first, second = (write(kind, tmp_path / name, network_policy=PUBLIC) for name in ("first", "second"))
    async with running(first), running(second):
        await output(first, f"({SERVE}) >/dev/null 2>&1 & until {LISTENS}; do sleep 0.05; done")
        for sandbox, status in ((first, "0"), (second, "1")):
            done = await sandbox.service_exec(REACH.format("main/80"), service="side")
            assert (done.stdout or "").strip() == status
        seen = await output(first, "cat /proc/net/dev | cut -d: -f1; cat /proc/sys/net/ipv4/ip_forward")
        assert seen.split()[-5:] == ["lo", "tap0", "eth0", "eth1", "0"]
        # Neither the packet filter nor the rights over the network are the sandbox's.
        for address in ("169.254.169.254/80", "10.0.2.2/80", "172.17.0.1/80", "127.0.0.1/80 "):
            done = await second.service_exec(REACH.format(address), service="side")
            assert (done.stdout or "").strip() != "0"
        # A service of an internal network has no way out, and no other service's is its own.
        routes = await first.service_exec("awk 'NR > 1 {print $1, $2}' /proc/net/route", service="back")
        assert (routes.stdout or "").split() == ["eth0", "000012AC"]


ATTACKS = (
    "umount /shared",
    "umount -l /also",
    "mount -o remount,rw /also",
    "touch /also/x",
    "mount --bind /tmp /shared",
    "mknod /shared/device b 8 0 && dd if=/shared/device of=/dev/null count=1",
    "echo 1 >/proc/sys/net/ipv4/ip_forward",
    "nsenter --net=/proc/1/ns/net --user true",
)


async def test_a_policy_that_is_root_does_not_change_mounts_and_networks(kind: str, tmp_path: Path) -> None:
    async with running(write(kind, tmp_path)) as sandbox:
        for attack in ATTACKS:
            assert (await sandbox.exec(f"({attack}) 2>&1", user="root")).return_code != 0, attack
        await output(sandbox, "cp /bin/bash /shared/bash && chmod 4755 /shared/bash && chown 0:0 /shared/bash")
        assert await output(sandbox, "/shared/bash -p -c 'id -u'", user="1234") == "1234"


_LEND = """
import os, sys
import shared
from kernel.calls import MS_PRIVATE, MS_REC, mount
os.unshare(os.CLONE_NEWNS)
mount("none", "/", None, MS_REC | MS_PRIVATE)
os.chdir(sys.argv[1])
volumes = shared.Volumes()
volume = volumes.lend("0", 1 << 20)
os.mkdir("inside", dir_fd=volume)
os.symlink("/etc", "link", dir_fd=volume)
for part in ("", "inside", "link", "link/passwd", "../..", "inside/../../..", "absent"):
    try:
        volumes.lend("0", 1 << 20, part)
        print(part, "lent")
    except OSError as exc:
        print(exc.strerror)
for makes in ("inside/new/deep", "link/new/deep"):
    try:
        volumes.lend("0", 1 << 20, "", makes)
        print(makes, "made")
    except OSError:
        print(makes, "refused")
"""


def test_a_part_of_a_volume_is_no_file_of_the_machine(tmp_path: Path) -> None:
    done = run_in_program(_LEND, str(tmp_path))
    assert done.stdout.splitlines()[:2] == [" lent", "inside lent"], done.stderr
    refused = [f"the volume has no {part!r}, or only behind a link" for part in ("link", "link/passwd", "../..")]
    assert done.stdout.splitlines()[2:5] == refused
    assert "lent" not in "".join(done.stdout.splitlines()[5:])
    assert done.stdout.splitlines()[-2:] == ["inside/new/deep made", "link/new/deep refused"]
    assert not Path("/etc/new").exists()


async def test_the_network_of_a_phase_is_that_of_all_services(kind: str, tmp_path: Path) -> None:
    policies = PUBLIC, LISTED, LISTED_IPV6
    sandbox = write(kind, tmp_path, network_policy=NOTHING, phase_network_policies=policies)
    look = f"{REACH.format('main/80')}; tail -n +3 /proc/net/dev | cut -d: -f1; cat /etc/resolv.conf | grep -c 10.0"

    async def seen() -> list[list[str]]:
        found = [await sandbox.service_exec(look, service=name) for name in ("main", "side", "back")]
        return [(done.stdout or "").split() for done in found]

    async with running(sandbox):
        await output(sandbox, f"({SERVE}) >/dev/null 2>&1 & until {LISTENS}; do sleep 0.05; done")
        closed = [["0", "lo", "eth0", "eth1", "0"], ["0", "lo", "eth0", "0"], ["0", "lo", "eth0", "0"]]
        assert await seen() == closed
        for policy in (PUBLIC, LISTED, LISTED_IPV6, PUBLIC):
            await sandbox.set_network_policy(policy)
            opened = [["0", "lo", "eth0", "eth1", "tap0", "1"], ["0", "lo", "eth0", "tap0", "1"], closed[2]]
            assert await seen() == opened, policy
            away = await sandbox.service_exec(REACH.format("10.1.1.1/80"), service="side")
            assert (away.stdout or "").strip() == "1"  # refused at once by the packet filter
        await sandbox.set_network_policy(NOTHING)
        assert [words[:-1] for words in await seen()] == [words[:-1] for words in closed]


SHARING = """\
services:
  side:
    image: debian:bookworm-slim
    command: ["perl", "-MIO::Socket::INET", "-e", SERVER]
    healthcheck: {test: ["CMD", "bash", "-c", ": </dev/tcp/127.0.0.1/80"], interval: 1s}
  beside: {image: debian:bookworm-slim, command: sleep 1000}
""".replace("SERVER", json.dumps(SERVER.replace("$", "$$").replace("LocalPort", "LocalAddr => '127.0.0.1', LocalPort")))


async def test_services_of_a_task_without_a_public_network_are_at_localhost_as_with_harbors_docker(
    kind: str, tmp_path: Path
) -> None:
    sandbox = write(kind, tmp_path, SHARING, network_policy=NOTHING, phase_network_policies=(PUBLIC,))
    async with running(sandbox):
        for policy in (NOTHING, PUBLIC):
            await sandbox.set_network_policy(policy)
            for service in ("main", "beside"):
                for name in ("localhost", "side"):
                    done = await sandbox.service_exec(REACH.format(f"{name}/80"), service=service)
                    assert (done.stdout or "").strip() == "0", (policy.network_mode, service, name)


BELOW = """\
services:
  side:
    image: debian:bookworm-slim
    command: sleep 1000
    volumes: ["outer:/outer", "inner:/outer/a/inner", "./Dockerfile:/outer/b/file:ro"]
    tmpfs: /outer/memory
volumes: {outer: , inner: }
"""


async def test_a_mount_can_be_below_a_volume(kind: str, tmp_path: Path) -> None:
    async with running(write(kind, tmp_path, BELOW)) as sandbox:
        command = "touch /outer/a/inner/x /outer/memory/x && cd /outer && stat -c '%n %u' a a/inner && cat b/file"
        done = await sandbox.service_exec(command, service="side")
        assert (done.stdout or "").splitlines() == ["a 0", "a/inner 0", "FROM debian:bookworm-slim"], done.stderr


async def test_files_of_a_volume_are_not_a_services_memory(kind: str, tmp_path: Path) -> None:
    compose = COMPOSE.replace("command: sleep 1234567, volumes", "command: sleep 1000, mem_limit: 32m, volumes")
    async with running(write(kind, tmp_path, compose)) as sandbox:
        done = await sandbox.service_exec("head -c 300M /dev/zero >/shared/large && echo written", service="side")
        assert done.stdout == "written\n"
        done = await sandbox.service_exec("head -c 600M /dev/zero | tail -n 1 | wc -c", service="side")
        assert (done.stdout or "").strip() != str(600 << 20), "its memory has no limit"


async def test_a_service_that_is_not_there_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    async with running(write(kind, tmp_path)) as sandbox:
        for call in (
            sandbox.service_exec("true", service="absent"),
            sandbox.service_download_file("/x", tmp_path / "x", service="absent"),
            sandbox.stop_service("absent"),
        ):
            with pytest.raises(SandboxError, match="no service 'absent' beside main: there are back, side"):
                await call
        await sandbox.stop_service("side")
        with pytest.raises(SandboxError, match="'side' is not running"):
            await sandbox.service_exec("true", service="side")


AS_USER = """\
import sys, pytest
from tests.helpers import engines
engines.has_engine = lambda engine: True
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
FOR_ROOT = "part_of_a_volume or as_an_ordinary_user or with_docker or sixteen"
"""Tests that call the supervisor's program in namespaces of their own, need another daemon, or show scale."""


WANTED = {"local": (f"not (apptainer or {FOR_ROOT})", 15), "apptainer": (f"apptainer and not ({FOR_ROOT})", 12)}
"""Kind → which tests an ordinary user runs, and how many there are at least."""


@pytest.mark.slow
async def test_as_an_ordinary_user(kind: str) -> None:
    wanted, count = WANTED[kind]
    files = (f"tests/integration/local/test_compose_{name}.py" for name in ("confinement", "episodes"))
    done = await run_rootless("-c", AS_USER, *files, "-k", wanted)
    assert " skipped" not in done.stdout, done.stdout
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= count, done.stdout


SCRIPT = """\
import asyncio, sys, pathlib
from tests.integration.local.test_compose_confinement import PUBLIC, write
async def main():
    folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
    sandboxes = [write(kind, folder / str(number), network_policy=PUBLIC) for number in range(4)]
    await asyncio.gather(*(sandbox.start(force_build=False) for sandbox in sandboxes))
    print("up", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_trainer(kind: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SCRIPT, str(tmp_path), kind]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "up\n"
            below = descendants(trainer.pid)
            left = traces(trainer.pid, below)
            # An ordinary user sees no namespaces of processes that can't be dumped, and makes no control groups.
            seen = {"process", "network", "group"} if os.geteuid() == 0 else {"process"}
            assert {trace for trace, _ in left} >= seen
            names = Counter(stat.name.removesuffix("_ll") for stat in map(read_stat, below) if stat is not None)
            assert (names["sleep"], names["squashfuse"]) == (8, 12 if kind == "apptainer" else 0)
        finally:
            trainer.kill()
    ends = time.monotonic() + PATIENCE_SEC
    while left & traces(trainer.pid, process_ids()) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not left & traces(trainer.pid, process_ids())


def traces(trainer: int, processes: Iterable[int]) -> set[tuple[str, str]]:
    """Return some processes and the network namespaces that they are in, and the control groups of a trainer."""
    stats = [stat for stat in map(read_stat, processes) if stat is not None]
    found = {("process", f"{stat.pid} {stat.start_time}") for stat in stats}
    for stat in stats:
        with contextlib.suppress(OSError):
            found.add(("network", str(Path(f"/proc/{stat.pid}/ns/net").readlink())))
    found.discard(("network", str(Path("/proc/self/ns/net").readlink())))
    for place in cgroups.places().values() if os.geteuid() == 0 else ():
        found |= {("group", path.name) for path in place.directory.glob(f"harbor-gym-*.{trainer}.*")}
    return found
