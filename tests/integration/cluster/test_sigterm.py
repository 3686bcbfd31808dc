"""SIGTERM, as a scheduler sends it, to the process that drives a Ray cluster."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("ray") is None:
    pytest.skip('pip install "harbor-gym[ray]"', allow_module_level=True)

from tests.helpers.cluster.nodes import RAY_ENV
from tests.helpers.patience import PATIENCE_SEC

pytestmark = [pytest.mark.slow]


def test_sigterm_closes_every_sandbox_first(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hg", dir="/tmp") as short:  # Ray's sockets lie deep below it
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.cluster.interrupted", str(tmp_path)],
            env={**os.environ, **RAY_ENV, "RAY_TMPDIR": short, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE_SEC
            while len(list(temporary.glob("harbor-gym*"))) < 4:
                assert process.poll() is None
                assert time.monotonic() < deadline, "no sandbox was started"
                time.sleep(0.05)
            process.terminate()
            output, _ = process.communicate(timeout=PATIENCE_SEC)
        finally:
            process.kill()
            process.wait()
    assert output == "KeyboardInterrupt\n", "the block ends as by Ctrl-C"
    assert process.returncode == -signal.SIGINT
    assert list(temporary.glob("harbor-gym*")) == []
