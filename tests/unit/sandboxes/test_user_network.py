"""A sandbox's network program: it goes and comes again, however quickly it ends."""

from pathlib import Path

import pytest

from tests.helpers.sandboxes.program import run_in_program

_SWITCH = """
import sys, time
from types import SimpleNamespace
from network import UserNetwork
network = UserNetwork(SimpleNamespace(slirp4netns=sys.argv[1], may_have_network=True))
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
