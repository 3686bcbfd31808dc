"""A connection to a Ray cluster: the one that is there, or one on this machine."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from harbor_gym.cluster.executor import RESOURCE, ClusterExecutor, ClusterLimits
from harbor_gym.errors import MissingDependencyError


@contextlib.contextmanager
def connect(limits: ClusterLimits, *, output_dir: Path | None = None) -> Generator[ClusterExecutor]:
    """Yield an executor over a Ray cluster, and end it with the block.

    The cluster is the one that this process is connected to, or else the one that ``RAY_ADDRESS`` names, or else one
    that is started on this machine. Calls that are under way when the block ends are interrupted; they close their
    sandboxes first.

    Args:
        limits: How much of the cluster to take.
        output_dir: As for :class:`ClusterExecutor`.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    ray = _ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else _local(limits)))
    executor = ClusterExecutor(ray, limits, output_dir=output_dir)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        if is_ours:
            ray.shutdown()


def _local(limits: ClusterLimits) -> dict[str, Any]:
    sandboxes = limits.max_workers * limits.sandboxes_per_worker
    return {"num_cpus": limits.max_workers, "include_dashboard": False, "resources": {RESOURCE: sandboxes}}


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('rollouts on Ray need it: pip install "harbor-gym[ray]"') from exc
    return ray
