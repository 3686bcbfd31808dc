"""Ray nodes on this machine, each with a cache and a temporary folder of its own."""

import contextlib
import functools
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

SANDBOXES = 16
_START_SEC = 300
"""A machine that is busy with other tests starts a node in minutes; Ray itself gives up after 30 seconds."""

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
_QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A raylet ends if its agent has not come up by then.
    "RAY_agent_register_timeout_ms": f"{_START_SEC}000",
    "PYTHONPATH": str(ROOT),
}


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
        self.living[name] = self.cluster.add_node(
            num_cpus=2,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            resources={"harbor_sandbox": sandboxes},
            env_vars={**_QUIET, "TMPDIR": str(self.tmp(name)), "HARBOR_GYM_CACHE": str(self.folder / name / "cache")},
        )

    def kill(self, name: str) -> None:
        """SIGKILL a node's raylet."""
        node = self.living.pop(name)
        for info in node.all_processes["raylet"]:
            os.kill(info.process.pid, signal.SIGKILL)


def _wait_for(get_node: Callable[..., Any], *args: Any) -> Any:
    """Ask for a node's registration until it is there."""
    deadline = time.monotonic() + _START_SEC
    while True:
        try:
            return get_node(*args)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


@contextlib.contextmanager
def two_nodes(folder: Path) -> Generator[Nodes]:
    """Yield a cluster with the nodes ``first`` and ``second``, and this process connected to it."""
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    get_node = services.get_node
    services.get_node = functools.partial(_wait_for, get_node)
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    # The paths of Ray's sockets must be short.
    session = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head: dict[str, Any] = {"num_cpus": 1, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster()
    nodes = Nodes(cluster, folder)
    try:
        cluster.add_node(**head, temp_dir=session, env_vars=_QUIET)
        nodes.add("first")
        nodes.add("second")
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
    finally:
        services.get_node = get_node
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
