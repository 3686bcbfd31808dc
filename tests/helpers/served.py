"""A server of tasks in a process of its own, started like the recipe."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.paths import ROOT

TOKEN_LINE = re.compile(r"HARBOR_GYM_OPENENV_TOKEN=(\S+)")
ADDRESS_LINE = re.compile(r"serving at (https?://\S+)")


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    token: str
    printed: list[str]
    """Its output until it was ready."""

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(90)


@contextlib.contextmanager
def served(*arguments: str | Path, token: str | None = None) -> Generator[Served]:
    """Run ``recipes/openenv_server.py`` on a free port; it is killed at the end, if it still runs."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.pop("HARBOR_GYM_OPENENV_TOKEN", None)
    if token is not None:
        variables["HARBOR_GYM_OPENENV_TOKEN"] = token
    command = [sys.executable, "recipes/openenv_server.py", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        yield _ready(process, token)
    finally:
        process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str], token: str | None) -> Served:
    assert process.stdout is not None
    printed: list[str] = []
    for line in process.stdout:
        printed.append(line)
        if (generated := TOKEN_LINE.match(line)) is not None:
            token = generated[1]
        if (address := ADDRESS_LINE.match(line)) is not None:
            assert token is not None
            return Served(process, address[1], token, printed)
    raise AssertionError(f"the server ended with status {process.wait()}: {printed}")
