"""Executors by name: processes of this machine, or the nodes of a Ray cluster."""

import contextlib
from collections.abc import Generator
from concurrent.futures import Executor

from harbor_gym._runtime.files import StrPath
from harbor_gym.errors import UsageError
from harbor_gym.types import ExecutorKind


def require_shared_rate(kind: ExecutorKind | None, starts_per_sec: float | None) -> None:
    """Refuse a rate of starts without the executor that can keep it.

    Raises:
        UsageError: There is a rate, and the executor is not Ray's.
    """
    if starts_per_sec is not None and kind is not ExecutorKind.RAY:
        raise UsageError("--rollout-starts-per-sec is shared by Ray's nodes: it needs --rollout-executor ray")


@contextlib.contextmanager
def open_executor(
    kind: ExecutorKind,
    workers: int,
    *,
    output_dir: StrPath | None = None,
    sandboxes_per_worker: int = 1,
    starts_per_sec: float | None = None,
) -> Generator[Executor]:
    """Yield an executor, and end its workers after the block.

    A block that fails interrupts running calls, which close their sandboxes first.

    Args:
        kind: Processes of this machine, or actors of a Ray cluster (:func:`harbor_gym.cluster.connect`).
        workers: Number of workers; each runs one call at a time.
        output_dir: With Ray: files that calls write below it are copied back from the nodes.
        sandboxes_per_worker: With Ray: sandboxes that a call holds at once, of a node's ``harbor_sandbox``.
        starts_per_sec: With Ray: starts of sandboxes per second, over all nodes; None is no limit.

    Raises:
        UsageError: ``workers`` is below 1.
        MissingDependencyError: Ray is not installed.
    """
    if workers < 1:
        raise UsageError(f"rollouts need at least 1 worker, got {workers}")
    if kind is ExecutorKind.PROCESS:
        from harbor_gym.cluster.processes import process_executor

        with process_executor(workers) as executor:
            yield executor
        return
    from harbor_gym.cluster.executor import ClusterLimits
    from harbor_gym.cluster.session import connect

    limits = ClusterLimits(
        max_workers=workers, sandboxes_per_worker=sandboxes_per_worker, starts_per_sec=starts_per_sec
    )
    with connect(limits, output_dir=output_dir) as executor:
        yield executor
