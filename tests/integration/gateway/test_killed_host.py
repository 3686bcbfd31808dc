"""A killed host of agents that call the gateway through tunnels leaves nothing of them."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.tasks import write_task
from tests.integration.episode.test_kill import contents, groups_of, mounts
from tests.unit.house.test_cli import run

SEED = 20261122


@pytest.mark.local
@pytest.mark.slow
def test_hosts_killed_with_8_tunnels_leave_nothing(tmp_path: Path, scratch: Path) -> None:
    task = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    before = mounts()
    words = [task, 3, 8, SEED, 1.0]
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.gateway.killed_trials", *map(str, words)]
    # To files: a process that wrongly lives on would hold pipes open, and the test would hang instead of failing.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=errors, check=False, timeout=2 * PATIENCE_SEC)
        output.seek(0)
        errors.seek(0)
        assert done.returncode == 0, errors.read().decode()
        found = json.loads(output.read())
    assert found["answered"] == 3 * 8
    assert found["orphans"] == []
    assert found["open_ports"] == []
    assert mounts() == before
    assert groups_of(found["owners"]) == []
    assert run("reap").returncode == 0
    assert contents(scratch) == []
