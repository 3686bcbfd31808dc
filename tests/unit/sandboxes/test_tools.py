"""A tool that is tied to its caller: it ends with that, and does not begin after its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.patience import wait_until

SLOW_SETPRIV = """\
#!/bin/sh
echo >{started}
read -r _ <{gate}
PATH=${{PATH#*:}} exec setpriv "$@"
"""

CALLER = """\
import subprocess, sys
from harbor_gym.sandboxes.tools import tied
subprocess.run([*tied(), "touch", sys.argv[1]], check=True)
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_tool_does_not_begin_after_its_callers_end(tmp_path: Path, is_killed: bool) -> None:
    started, gate, made = tmp_path / "started", tmp_path / "gate", tmp_path / "made"
    os.mkfifo(gate)
    slow = tmp_path / "setpriv"
    slow.write_text(SLOW_SETPRIV.format(started=started, gate=gate), encoding="utf-8")
    slow.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, made], env={**os.environ, "PATH": path}, stdout=subprocess.PIPE
    )
    with caller:
        wait_until(started.exists)
        if is_killed:
            caller.kill()
            caller.wait()
        gate.write_text("go on\n", encoding="utf-8")
        assert caller.stdout is not None
        assert caller.stdout.read() == b"", "it ends when the tool has ended, too"
    assert made.exists() != is_killed
