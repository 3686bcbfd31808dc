"""The script that stops the policy's processes, where the sandbox turns out to share the caller's."""

import os
import subprocess

import pytest

from harbor_gym._runtime.rootless import USER_NAMESPACE, is_rootless
from harbor_gym.episode.grading.cleanup import read_script
from tests.helpers.patience import PATIENCE_SEC

_PLACE = ["unshare", *(USER_NAMESPACE if is_rootless() else []), "--fork", "--pid", "--mount-proc"]
"""A process namespace of its own: a faulty script must not reach this machine's processes."""

_TRY = """
boot=$(cat /proc/sys/kernel/random/boot_id)
start=$(cut -d ' ' -f 22 /proc/$$/stat)
sleep 100 & victim=$!
sh -c "$COMMON
set -- , , '' 50 1000 $boot$1 ${2:-$$} $((start + $3))
$STOP"
kill -0 $victim 2>/dev/null && echo runs
"""


@pytest.mark.parametrize(
    ("other_boot", "other_pid", "later", "output"),
    [
        pytest.param("", "", "0", "runs", id="seen"),
        pytest.param("", "", "1", "", id="another_process_of_that_id"),
        pytest.param("", "4194304", "0", "", id="not_seen"),
        pytest.param("0", "", "0", "", id="another_machine"),
    ],
)
def test_nothing_is_stopped_where_the_caller_is_seen(other_boot: str, other_pid: str, later: str, output: str) -> None:
    scripts = {name.upper(): read_script(name) for name in ("common", "stop")}
    done = subprocess.run(
        [*_PLACE, "bash", "-c", _TRY, "bash", other_boot, other_pid, later],
        env={**os.environ, **scripts},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )
    stopped, *still = done.stdout.splitlines()
    assert stopped.split()[:3] == ["stop", "0" if output else "1", "0"], done.stderr
    assert still == ([output] if output else [])
