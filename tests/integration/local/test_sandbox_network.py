"""The hosts that a local sandbox with a public network may reach and may not; how the network comes and goes."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from harbor_gym._runtime import rootless
from harbor_gym._runtime.procfs import read_stat
from harbor_gym.errors import MissingDependencyError, SandboxError, SandboxLostError, UsageError
from harbor_gym.sandboxes import environment_config, namespaced
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import options
from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid
from harbor_gym.sandboxes.supervisor.network import NETWORK_PROGRAM, own_addresses
from tests.helpers.bases import ensure_base_tar
from tests.helpers.hostile import first_words
from tests.helpers.hostile.first_words import DEVICES, PUBLIC, network_processes
from tests.helpers.paths import ROOT
from tests.helpers.patience import eventually
from tests.helpers.rootless import rootless_user, run_as
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_REPOSITORY = ROOT
_NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
_TALK = """
import errno, json, socket, sys
results = {}
for name, host, port in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((host, port), 1) as connection:
            results[name] = connection.recv(100).decode()
    except TimeoutError:
        results[name] = "TIMEOUT"
    except OSError as exc:
        results[name] = errno.errorcode.get(exc.errno, str(exc))
print(json.dumps(results))
"""


@pytest.fixture
async def greeter() -> AsyncGenerator[int]:
    """A port of this machine, on all its addresses, that greets each client."""
    async with first_words.greeting() as port:
        yield port


async def _talk(sandbox: LocalEnvironment, **targets: tuple[str, int]) -> dict[str, str]:
    """Connect from inside to each target and return its answer, or the error's name."""
    listed = json.dumps([(name, *target) for name, target in targets.items()])
    return json.loads(await output(sandbox, f"python3 -c '{_TALK}' '{listed}'"))


def _own_address() -> str:
    if not own_addresses():
        pytest.skip("this machine has no IPv4 address but loopback's: give it one")
    return first_words.own_address()


async def test_a_public_network_reaches_others_but_neither_the_machine_nor_private_networks(
    tmp_path: Path, greeter: int
) -> None:
    here = _own_address()
    never = {"metadata": ("169.254.169.254", 80), "azure": ("168.63.129.16", 80), "oracle": ("192.0.0.192", 80)}
    private = {"machine": (here, greeter), "private": ("10.1.2.3", 80), "shared": ("100.64.0.1", 80),
               "docker": ("172.17.0.1", greeter), "home": ("192.168.77.1", 80)}  # fmt: skip
    async with running(make_sandbox(tmp_path / "open", network_policy=PUBLIC, private_network=True)) as sandbox:
        printed = await _talk(sandbox, loopback=("10.0.2.2", greeter), machine=(here, greeter), **never)
        assert printed.pop("machine") == "hello"
        assert printed.pop("loopback") in ("ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "TIMEOUT")
        assert printed == dict.fromkeys(never, "ECONNREFUSED")
        assert await output(sandbox, "cat /etc/resolv.conf") == "nameserver 10.0.2.3"
    async with running(make_sandbox(tmp_path / "closed", network_policy=PUBLIC)) as sandbox:
        printed = await _talk(sandbox, **private, **never)
        assert printed == dict.fromkeys(printed, "ECONNREFUSED")
        assert await output(sandbox, DEVICES) == "lo\ntap0"
        assert network_processes() == []


_SEND_TO_ALL = """
import socket
for family, address in ((socket.AF_INET, "224.0.0.251"), (socket.AF_INET, "255.255.255.255"),
                        (socket.AF_INET6, "ff02::1"), (socket.AF_INET6, "2001:db8::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            sender.sendto(b"hello", (address, 5353))
        except OSError as exc:
            print(exc)
"""
_STATE = """
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    for request in (0x8913, 0x8915, 0x891B, 0x8919, 0x8921, 0x8927):
        print(fcntl.ioctl(any_socket, request, struct.pack("16s24x", b"tap0"))[16:].hex())
print(open("/proc/net/route").read(), open("/proc/net/if_inet6").read())
"""
"""Prints the device's SIOCGIFFLAGS, ADDR, NETMASK, BRDADDR, MTU and HWADDR, and the routes."""


async def test_the_first_packet_that_may_leave_starts_the_network_and_changes_nothing_inside(
    tmp_path: Path, greeter: int
) -> None:
    _own_address()
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC, private_network=True)) as sandbox:
        await output(sandbox, f"python3 -c '{_SEND_TO_ALL}'; sleep 2")  # the kernel looks for neighbors by itself
        assert network_processes() == []
        before = await output(sandbox, f"python3 -c '{_STATE}'")
        assert await first_words.connect(sandbox, greeter) == "hello"
        assert len(network_processes()) == 1
        assert await output(sandbox, f"python3 -c '{_STATE}'") == before


_CHANGES = {
    "a route": (0, 0x18, "02000000fe030001"),
    "a device": (0, 0x10, "00000000000000000000000000000000"),
    "the device's end": (0, 0x11, "00000000000000000000000000000000"),
    "an address": (0, 0x14, "0218000000000000"),
    "a neighbor": (0, 0x1C, "020000000000000000000000"),
    "how the kernel asks for neighbors": (0, 0x43, "02000000"),
    "the packet filter": (12, 0x0A00 | 2, "01000000"),
}
"""netlink's family, message and body: RTM_NEWROUTE, _NEWLINK, _DELLINK, _NEWADDR, _NEWNEIGH and _SETNEIGHTBL, and
NFT_MSG_DELTABLE."""
_CHANGE = """
import socket, struct, sys
family, kind, body = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as netlink:
    netlink.send(struct.pack("=IHHII", 16 + len(body), kind, 0x5, 1, 0) + body)
    print(-struct.unpack_from("=i", netlink.recv(4096), 16)[0])
"""


async def test_root_inside_can_not_change_its_network(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC)) as sandbox:
        for what, words in _CHANGES.items():
            printed = await output(sandbox, f"python3 -c '{_CHANGE}' {' '.join(map(str, words))}")
            assert printed == str(errno.EPERM), what
        assert (await sandbox.exec("echo 1 > /proc/sys/net/ipv4/ip_forward")).return_code != 0


_REACHED = {"before": ["lo\ntap0", 0], "heard": ["0 1 2", "hello", "lo\ntap0"], "after": 1, "on loopback": 0}


async def test_who_names_a_device_reaches_no_further(tmp_path: Path) -> None:
    """With SO_BINDTODEVICE a packet takes no route: the machine's own loopback heard it."""
    here = _own_address()
    assert await first_words.reach(tmp_path / "open") == _REACHED
    async with first_words.echoing() as echo:
        async with running(make_sandbox(tmp_path / "closed", network_policy=PUBLIC)) as sandbox:
            await first_words.send_by_device(sandbox, here, echo.port)
            assert network_processes() == []
        assert echo.heard == []


@pytest.mark.slow
async def test_an_ordinary_users_does_not_either(tmp_path: Path) -> None:
    _own_address()
    base = await ensure_base_tar()

    def reach() -> subprocess.CompletedProcess[str]:
        with rootless_user() as (user, home):
            return run_as(user, home, sys.executable, "-m", "tests.helpers.hostile.first_words", base=base)

    done = await asyncio.to_thread(reach)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == _REACHED


async def test_a_network_comes_and_goes_with_the_phases(tmp_path: Path, greeter: int) -> None:
    here = (_own_address(), greeter)
    made = make_sandbox(tmp_path, private_network=True, phase_network_policies=[_NO_NETWORK, PUBLIC])
    async with running(made) as sandbox:
        assert await _talk(sandbox, machine=here) == {"machine": "ENETUNREACH"}
        for _ in range(2):
            await sandbox.set_network_policy(PUBLIC)
            assert await _talk(sandbox, machine=here) == {"machine": "hello"}
            assert await output(sandbox, "cat /etc/resolv.conf") == "nameserver 10.0.2.3"
            await sandbox.set_network_policy(_NO_NETWORK)
            assert await output(sandbox, DEVICES) == "lo"
            assert network_processes() == []
            assert await _talk(sandbox, machine=here) == {"machine": "ENETUNREACH"}
        await sandbox.set_network_policy(PUBLIC)
        await sandbox.set_network_policy(_NO_NETWORK)
        assert await output(sandbox, DEVICES) == "lo"


_WITHOUT = """
import asyncio, json, logging
from pathlib import Path
from harbor_gym.checking import doctor
from tests.helpers.hostile.first_words import DEVICES, PUBLIC
from tests.helpers.sandboxes.local import make_sandbox, output, running

async def main():
    seen = []
    for number in range(2):
        async with running(make_sandbox(Path.home() / str(number), network_policy=PUBLIC)) as sandbox:
            seen.append(await output(sandbox, DEVICES))
    return seen

logging.basicConfig(level=logging.WARNING)
found = {one.what: [one.ok, one.is_needed, one.note] for one in doctor.examine("local")}
print(json.dumps([asyncio.run(main()), found["/dev/net/tun"]]))
"""


@pytest.mark.slow
async def test_an_ordinary_user_without_the_device_gets_no_network_and_one_line() -> None:
    base = await ensure_base_tar()

    def look() -> subprocess.CompletedProcess[str]:
        with rootless_user() as (user, home):
            return run_as(user, home, sys.executable, "-c", _WITHOUT, base=base, tun_mode="600")

    done = await asyncio.to_thread(look)
    assert done.returncode == 0, done.stdout + done.stderr
    seen, (is_ok, is_needed, note) = json.loads(done.stdout.splitlines()[-1])
    assert seen == ["lo", "lo"]
    assert (is_ok, is_needed) == (False, False)
    assert "Permission denied): tasks run without a network" in note
    assert done.stderr.count("run without a network") == 1
    assert "chmod 666 /dev/net/tun" in done.stderr


async def test_root_learns_which_device_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = rootless.network_refusal
    monkeypatch.setattr(rootless, "network_refusal", lambda: refuse(tmp_path / "tun"))
    with pytest.raises(MissingDependencyError, match=r"public, and .*/tun is missing: as root modprobe tun; mknod"):
        await make_sandbox(tmp_path, network_policy=PUBLIC).start(force_build=False)


async def test_the_network_process_is_unseen_inside_and_dies_with_the_sandbox(tmp_path: Path, greeter: int) -> None:
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC, private_network=True)) as sandbox:
        await first_words.connect(sandbox, greeter)
        assert NETWORK_PROGRAM not in await output(sandbox, "ps -eo args")
        (process,) = network_processes()
        with pytest.raises(SandboxLostError, match="slirp4netns"):  # noqa: PT012  # the kill makes it fail
            waiting = asyncio.ensure_future(sandbox.exec("sleep 100"))
            await asyncio.sleep(0.2)
            os.kill(process, signal.SIGKILL)
            await waiting
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC, private_network=True)) as sandbox:
        await first_words.connect(sandbox, greeter)
        await eventually(lambda: len(network_processes()) == 1)  # the first one's end takes the kernel 20 ms
        (process,) = network_processes()
    ending = read_stat(process)
    assert ending is None or ending.parent == forkserver_pid(), "a process that collects none may get it"
    await eventually(lambda: read_stat(process) is None)


async def test_a_network_that_does_not_start_is_the_machines_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = namespaced.find_program

    def find_another(program: str) -> str | None:
        return "/bin/false" if program == NETWORK_PROGRAM else find(program)

    monkeypatch.setattr(namespaced, "find_program", find_another)
    async with running(make_sandbox(tmp_path, network_policy=PUBLIC, private_network=True)) as sandbox:
        with pytest.raises(SandboxLostError, match="slirp4netns gives no network"):
            await first_words.connect(sandbox, 1)


async def test_a_network_that_starts_late_loses_no_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself the kernel would ask for the gateway for three seconds, and then drop the packets."""
    find = namespaced.find_program
    late = tmp_path / "late"
    late.write_text(f'#!/bin/sh\nsleep 4\nexec {find(NETWORK_PROGRAM)} "$@"\n')
    late.chmod(0o755)

    def find_late(program: str) -> str | None:
        return str(late) if program == NETWORK_PROGRAM else find(program)

    monkeypatch.setattr(namespaced, "find_program", find_late)
    made = make_sandbox(tmp_path / "sandbox", network_policy=PUBLIC, private_network=True)
    async with first_words.echoing() as echo, running(made) as sandbox:
        assert await first_words.send(sandbox, echo.port) == "0 1 2"


async def test_a_network_that_no_phase_was_to_have_is_refused(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        with pytest.raises(SandboxError, match="without a network connection"):
            await sandbox.set_network_policy(PUBLIC)


async def test_without_the_program_a_public_network_is_refused_unless_none_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(options, "missing_packages", lambda: (NETWORK_PROGRAM,))
    with pytest.raises(MissingDependencyError, match="apt-get install -y slirp4netns"):
        await make_sandbox(tmp_path, network_policy=PUBLIC).start(force_build=False)
    for _ in range(2):
        async with running(make_sandbox(tmp_path, network_policy=PUBLIC, network="none")) as sandbox:
            assert await output(sandbox, DEVICES) == "lo"
    assert caplog.text.count("without a network") <= 1  # 0 where an earlier test logged it already
    async with running(make_sandbox(tmp_path)):
        """A task without a network does not need it."""
    with pytest.raises(UsageError, match="'maybe'"):
        make_sandbox(tmp_path, network="maybe")


_PHASES_TOML = """
[environment]
network_mode = "no-network"
memory_mb = 512
cpus = 1
[verifier]
network_mode = "public"
"""
_PHASES_TEST = """\
#!/bin/bash
exec > /logs/verifier/reward.txt
if [ "$(cat /srv/answer)" = none ] && grep -q tap0 /proc/net/dev; then echo 1; else echo 0; fi
"""


async def test_harbors_own_trials_solve_tasks_in_it_and_switch_its_phases(tmp_path: Path) -> None:
    phases = write_task(tmp_path / "phases", toml=_PHASES_TOML, test_sh=_PHASES_TEST)
    (phases / "solution" / "solve.sh").write_text("grep -q tap0 /proc/net/dev || echo none > /srv/answer\n")
    for task in (phases, _REPOSITORY / "tasks" / "devops_task"):
        config = TrialConfig(
            task=TaskConfig(path=task),
            trials_dir=tmp_path / "trials",
            agent=AgentConfig(name="oracle"),
            environment=environment_config("local"),
        )
        result = await (await Trial.create(config)).run()
        assert result.exception_info is None, result.exception_info
        assert result.verifier_result is not None
        assert result.verifier_result.rewards == {"reward": 1.0}


async def test_what_is_mounted_shared_on_the_machine_stays(tmp_path: Path) -> None:
    """Docker mounts its containers' files so; slirp4netns by itself would take them away."""
    shared = tmp_path / "shared"
    (shared / "below").mkdir(parents=True)
    below = shared / "below"
    commands = (
        ["mount", "-t", "tmpfs", "tmpfs", str(shared)],
        ["mount", "--make-shared", str(shared)],
        ["mkdir", str(below)],
        ["mount", "-t", "tmpfs", "tmpfs", str(below)],
    )
    try:
        for command in commands:
            await asyncio.to_thread(subprocess.run, command, check=True)
        (below / "file").write_text("there")
        async with running(make_sandbox(tmp_path / "sandbox", network_policy=PUBLIC)) as sandbox:
            await first_words.start_network(sandbox)
            assert (below / "file").read_text() == "there"
        assert (below / "file").read_text() == "there"
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "--recursive", str(shared)], check=False)
