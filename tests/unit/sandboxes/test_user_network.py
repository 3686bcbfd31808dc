"""A sandbox's network program: it goes and comes again, however quickly it ends."""

from pathlib import Path

import pytest

from tests.helpers.sandboxes.program import run_in_program

_SWITCH = """
import sys, time
from types import SimpleNamespace
from network import UserNetwork
from kernel import programs
config = SimpleNamespace(slirp4netns=sys.argv[1], may_have_network=True, may_switch_network=True)
network = UserNetwork(config, programs.open_first())
end = network._outsider.end

def end_late():
    time.sleep(0.3)
    end()

network._outsider.end = end_late
for _ in range(3):
    with open("/proc/self/ns/net") as namespace:
        network.begin(namespace.fileno())
    network.wait()
    network.close()
    print("switched")
network.leave()
"""
_ENDS_WITH_ITS_PIPE = """#!/bin/bash
for word; do
    case $word in --ready-fd=*) ready=${word#*=} ;; --exit-fd=*) leave=${word#*=} ;; esac
done
printf 1 >&"$ready"
read -r -u "$leave"
"""


@pytest.mark.local
def test_a_network_program_that_ends_with_its_pipe_leaves_a_way_to_the_next(tmp_path: Path) -> None:
    program = tmp_path / "slirp4netns"
    program.write_text(_ENDS_WITH_ITS_PIPE)
    program.chmod(0o755)
    done = run_in_program(_SWITCH, str(program))
    assert done.stdout.split() == ["switched"] * 3, done.stderr


_ONE = """
import os, sys
from types import SimpleNamespace
from network import UserNetwork
from kernel import programs
config = SimpleNamespace(slirp4netns=sys.argv[1], may_have_network=True, may_switch_network=False)
network = UserNetwork(config, programs.open_first())
with open("/proc/self/ns/net") as namespace:
    network.begin(namespace.fileno())
    network.wait()
    pid = network.pid
    with open(f"/proc/{pid}/cmdline") as words, open(f"/proc/{pid}/task/{pid}/children") as below:
        print("slirp4netns" in words.read(), below.read().split())
    if sys.argv[2] == "dies":
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    network.close()
    print(os.path.exists(f"/proc/{pid}"), network.pid)
    try:
        network.begin(namespace.fileno())
    except OSError as exc:
        print(exc)
network.leave()
"""


@pytest.mark.local
@pytest.mark.parametrize("end", ["is closed", "dies"])
def test_a_network_that_never_changes_has_no_process_but_its_program(tmp_path: Path, end: str) -> None:
    program = tmp_path / "slirp4netns"
    program.write_text(_ENDS_WITH_ITS_PIPE)
    program.chmod(0o755)
    done = run_in_program(_ONE, str(program), end)
    none = "the sandbox was made without a network connection that comes later"
    assert done.stdout.splitlines() == ["True []", "False 0", none], done.stdout + done.stderr
