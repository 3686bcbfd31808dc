"""A sandbox's network program: it starts with a packet, goes and comes again, however quickly it ends."""

from pathlib import Path

import pytest

from harbor_gym._runtime.rootless import is_rootless
from tests.helpers.sandboxes.program import run_in_program

pytestmark = pytest.mark.local

_BEGIN = """
import os, select, signal, socket, sys, time
from types import SimpleNamespace
from network import UserNetwork
from kernel import device, packet_filter, programs

poll = select.poll()

def make(is_rootless):
    config = SimpleNamespace(slirp4netns=sys.argv[1], may_have_network=True, is_rootless=is_rootless)
    network = UserNetwork(config, programs.open_first(), poll)
    os.unshare(os.CLONE_NEWNET | (os.CLONE_NEWUSER if {rootless} else 0))
    packet_filter.raise_loopback()
    packet_filter.close_networks(["169.254.0.0/16"], "10.0.2.3")
    return network

def await_packet(network):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", ("198.51.100.1", 9))
    while not network.is_due({{handle for handle, _ in poll.poll()}}):
        pass
"""
_ENDS_WITH_ITS_PIPE = """#!/bin/bash
for word; do
    case $word in --ready-fd=*) ready=${word#*=} ;; --exit-fd=*) leave=${word#*=} ;; esac
done
printf 1 >&"$ready"
read -r -u "$leave"
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A program that ends with its pipe."""
    file = tmp_path / "slirp4netns"
    file.write_text(_ENDS_WITH_ITS_PIPE)
    file.chmod(0o755)
    return str(file)


def _run(code: str, *arguments: str) -> list[str]:
    done = run_in_program(_BEGIN.format(rootless=is_rootless()) + code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


_SWITCH = """
network = make(True)
end = network._outsider.end

def end_late():
    time.sleep(0.3)
    end()

network._outsider.end = end_late
for _ in range(3):
    network.open()
    await_packet(network)
    network.start()
    network.close()
    print("switched")
network.leave()
"""


def test_a_network_program_that_ends_with_its_pipe_leaves_a_way_to_the_next(program: str) -> None:
    assert _run(_SWITCH, program) == ["switched"] * 3


_ONE = """
network = make(False)
for _ in range(2):
    network.open()
    await_packet(network)
    network.start()
    pid = network.pid
    with open(f"/proc/{pid}/cmdline") as words, open(f"/proc/{pid}/task/{pid}/children") as below:
        print("slirp4netns" in words.read(), below.read().split())
    print(os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{os.getppid()}/ns/net"))
    if sys.argv[2] == "dies":
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    network.close()
    print(os.path.exists(f"/proc/{pid}"), network.pid, [name for _, name in socket.if_nameindex()])
network.leave()
"""


@pytest.mark.skipif(is_rootless(), reason="root's supervisor starts it without another process")
@pytest.mark.parametrize("end", ["is closed", "dies"])
def test_roots_network_has_no_process_but_its_program_outside_of_the_sandbox(program: str, end: str) -> None:
    assert _run(_ONE, program, end) == ["True []", "True", "False 0 ['lo']"] * 2


_HELD = """
network = make({rootless})
network.open()
index = socket.if_nametoindex("tap0")
child = os.fork()
if child == 0:
    if sys.argv[2] == "goes on":
        time.sleep(0.2)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
await_packet(network)
network.start()
print(device.is_free("tap0"), socket.if_nametoindex("tap0") == index)
os.kill(child, signal.SIGKILL)
network.close()
network.leave()
"""


@pytest.mark.parametrize(("fate", "is_same"), [("goes on", True), ("is stopped", False)])
def test_a_forked_process_does_not_keep_the_device_from_the_program(program: str, fate: str, is_same: bool) -> None:
    """A program can only attach to a device that no other process has; a process of the policy may stop a child."""
    assert _run(_HELD.format(rootless=is_rootless()), program, fate) == [f"True {is_same}"]
