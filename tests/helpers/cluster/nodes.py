"""Ray nodes on this machine, each with a cache and a temporary folder of its own."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

SANDBOXES = 16
_STARTS = 4
"""Attempts at a node: Ray gives up on one whose helpers do not come up within seconds, as on a busy machine."""

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
RAY_ENV = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "PYTHONPATH": str(ROOT),
}
"""Keeps Ray off the network and quiet, and its workers as fast as the rest; they import the tests' own modules."""


@contextlib.contextmanager
def ray_of_its_own() -> Generator[dict[str, str]]:
    """Yield the environment of a process that starts Ray on this machine, next to any other Ray."""
    with tempfile.TemporaryDirectory(prefix="hg", dir="/tmp") as short:  # Ray's sockets lie deep below it
        yield {**RAY_ENV, "RAY_TMPDIR": short}


@dataclass
class Nodes:
    """A cluster whose head has no sandboxes."""

    cluster: Any
    folder: Path
    living: dict[str, Any] = field(default_factory=dict[str, Any])

    def tmp(self, name: str) -> Path:
        """Return a node's temporary folder."""
        return self.folder / name / "tmp"

    def add(self, name: str, *, sandboxes: int = SANDBOXES) -> None:
        """Start a node."""
        for part in ("tmp", "cache"):
            (self.folder / name / part).mkdir(parents=True, exist_ok=True)
        self.living[name] = _add_node(
            self.cluster,
            num_cpus=2,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            resources={"harbor_sandbox": sandboxes},
            env_vars={**RAY_ENV, "TMPDIR": str(self.tmp(name)), "HARBOR_GYM_CACHE": str(self.folder / name / "cache")},
        )

    def kill(self, name: str) -> None:
        """SIGKILL a node's raylet and, as a dead machine would, all that it started."""
        node = self.living.pop(name)
        for info in node.all_processes["raylet"]:
            for pid in (info.process.pid, *_descendants(info.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the processes below one."""
    found = subprocess.run(["pgrep", "--parent", str(pid)], capture_output=True, text=True, check=False).stdout
    return [item for child in map(int, found.split()) for item in (child, *_descendants(child))]


def _add_node(cluster: Any, **settings: Any) -> Any:
    """Start a node, again where it did not come up in time."""
    for _ in range(_STARTS - 1):
        with contextlib.suppress(Exception):  # Ray raises nothing more specific
            return cluster.add_node(**settings)
    return cluster.add_node(**settings)


@contextlib.contextmanager
def two_nodes(folder: Path) -> Generator[Nodes]:
    """Yield a cluster with the nodes ``first`` and ``second``, and this process connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    before, handler = {name: os.environ.get(name) for name in RAY_ENV}, signal.getsignal(signal.SIGTERM)
    os.environ.update(RAY_ENV)
    # The paths of Ray's sockets must be short.
    session = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head: dict[str, Any] = {"num_cpus": 1, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    head["dashboard_port"] = None  # a port of its own: Ray leaves a socket open where another Ray has the usual one
    cluster = Cluster()
    nodes = Nodes(cluster, folder)
    try:
        _add_node(cluster, **head, temp_dir=session, env_vars=RAY_ENV)
        nodes.add("first")
        nodes.add("second")
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
    finally:
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)  # Ray's connection leaves one that exits
        shutil.rmtree(session, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
