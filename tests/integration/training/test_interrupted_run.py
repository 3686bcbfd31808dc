"""A training run on Docker that a scheduler interrupts stops its containers and its server.

SIGTERM becomes Ctrl-C's own signal (``_runtime/interrupts.py``), so that Ctrl-C does the same.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harbor_gym.sandboxes.labels import OWNER_LABEL
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.tasks import BASE, write_task

pytestmark = [
    pytest.mark.docker,
    pytest.mark.server,
    pytest.mark.tinker,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

GROUP = 3
CONTAINERS, NETWORKS, VOLUMES = ("ps", "-a"), ("network", "ls"), ("volume", "ls")


def in_docker(pid: int, *kinds: tuple[str, ...]) -> list[str]:
    """Return Docker's objects of some kinds with the label of a process, dead or alive."""
    found: list[str] = []
    for words in kinds:
        command = ["docker", *words, "--filter", f"label={OWNER_LABEL}", "--format", f'{{{{.Label "{OWNER_LABEL}"}}}}']
        labels = subprocess.check_output(command, text=True).splitlines()
        found += [f"{words[0]} {label}" for label in labels if re.search(rf"\.{pid}\.\d+$", label)]
    return found


def run_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that are below a run's."""
    listed = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True).split()
    parents = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))

    def is_below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == process.pid:
                return True
        return False

    return [pid for pid in parents if is_below(pid)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], *, limit_sec: float) -> None:
    deadline = time.monotonic() + limit_sec
    while not condition():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.5)  # each look starts a program, and a training takes a minute to begin


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_signal_stops_the_containers_of_a_training_run(policies: Path, tmp_path: Path, scratch: Path) -> None:
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    run_dir = tmp_path / "run"
    flags = (
        *("--task-dir", write_task(tmp_path / "task"), "--env", "docker", "--log-path", run_dir),
        *("--backend", "local", "--model-name", policies / "random"),
        # Every message is typed, and no episode ends by itself before the signal.
        *("--action-format", "keystrokes", "--renderer-name", "qwen3_instruct", "--lora-rank", 8),
        *("--group-size", GROUP, "--num-batches", 2, "--max-turns", 10000, "--max-tokens", 8),
        *("--max-context-tokens", 8000, "--max-consecutive-parse-failures", 10000, "--server-timeout-sec", 900),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "harbor_gym", "train", *map(str, flags)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(in_docker(process.pid, CONTAINERS)) == GROUP, process, limit_sec=1200)
        below = run_of(process)
        assert below, "the training server is a process of its own"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SEC)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, errors[-3000:]
    assert in_docker(process.pid, CONTAINERS, NETWORKS, VOLUMES) == []
    assert [pid for pid in below if is_running(pid)] == []
    assert [path.name for path in scratch.iterdir() if path.name.startswith("harbor-gym")] == []
    assert "Traceback" not in errors
    assert f"--resume {run_dir}" in errors
