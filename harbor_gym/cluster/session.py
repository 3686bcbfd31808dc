"""Connect to a Ray cluster: an existing one, or one on this machine."""

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from typing import Any

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.interrupts import ends_as_interrupts
from harbor_gym.cluster.executor import RESOURCE, ClusterExecutor, ClusterLimits
from harbor_gym.errors import MissingDependencyError


@contextlib.contextmanager
def connect(limits: ClusterLimits, *, output_dir: StrPath | None = None) -> Generator[ClusterExecutor]:
    """Yield an executor over a Ray cluster, and shut it down after the block.

    The cluster is the one that this process is connected to, else that of ``RAY_ADDRESS``, else one that is started on
    this machine. Calls that run when the block ends are interrupted and close their sandboxes; SIGTERM ends the block
    as Ctrl-C does.

    Args:
        limits: The share of the cluster to use.
        output_dir: See :class:`ClusterExecutor`.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    ray = _ray()
    is_ours = not ray.is_initialized()
    before = signal.getsignal(signal.SIGTERM)
    if is_ours:
        ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else _local(limits)))
        _put_back(before)
    executor = ClusterExecutor(ray, limits, output_dir=output_dir)
    try:
        with drain_on_sigterm():
            yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        if is_ours:
            ray.shutdown()


@contextlib.contextmanager
def drain_on_sigterm() -> Generator[None]:
    """Make SIGTERM end the block as Ctrl-C does, so that it closes its sandboxes.

    This applies to the main thread, and only if the handler is the default or Ray's, which exits in the middle of a
    call.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_free = handler is signal.SIG_DFL or getattr(handler, "__module__", "").partition(".")[0] == "ray"
    with ends_as_interrupts() if is_free else contextlib.nullcontext():
        yield


def _put_back(handler: Any) -> None:
    """Restore the SIGTERM handler that ``ray.init`` replaced in the main thread; None is one not set by Python."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _local(limits: ClusterLimits) -> dict[str, Any]:
    sandboxes = limits.max_workers * limits.sandboxes_per_worker
    return {"num_cpus": limits.max_workers, "include_dashboard": False, "resources": {RESOURCE: sandboxes}}


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('rollouts on Ray need it: pip install "harbor-gym[ray]"') from exc
    return ray
