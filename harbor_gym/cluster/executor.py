"""An executor over the nodes of a Ray cluster: every call ends exactly once, also if nodes or workers are lost."""

import contextlib
import logging
import pickle
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

from harbor_gym.cluster.actors import Limiter, NodeAgent, Worker
from harbor_gym.cluster.calls import CallPacker, PackedCall, PackedResult, accept_files
from harbor_gym.errors import SandboxLostError, SandboxStartError, UsageError

RESOURCE = "harbor_sandbox"
"""Ray's custom resource: how many sandboxes a node holds at once."""

_POLL_SEC = 0.25
_REFRESH_SEC = 5.0
_CLOSE_SEC = 30.0
"""Longest wait for idle workers to close their pools, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterLimits:
    """An executor's share of a cluster, and its time limits."""

    max_workers: int = 2
    """Concurrent calls, over all nodes."""

    sandboxes_per_worker: int = 1
    """Sandboxes that one call holds at once; they count against the node's ``harbor_sandbox``."""

    starts_per_sec: float | None = None
    """Starts of sandboxes per second, over all nodes; None is no limit."""

    burst: int = 8
    """Starts at once after an idle time."""

    max_attempts: int = 4
    """Attempts at a call that loses its worker; after the last one it fails."""

    node_timeout_sec: float = 300.0
    """Longest wait in seconds while no node has room for a call."""

    interrupt_timeout_sec: float = 60.0
    """Longest wait for interrupted calls to close their sandboxes, in seconds."""

    def __post_init__(self) -> None:
        for name in ("max_workers", "sandboxes_per_worker", "burst", "max_attempts"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(eq=False)
class _Job:
    call: PackedCall
    future: Future[Any]
    attempts: int = 0


@dataclass(eq=False)
class _WorkerHandle:
    actor: Any
    node_id: str
    pid: Any
    """A reference to the id of its process."""

    job: _Job | None = None
    reference: Any = None
    """A reference to the result of its call."""


@dataclass
class _Node:
    node_id: str
    agent: Any
    workers: list[_WorkerHandle] = field(default_factory=list[_WorkerHandle])


class ClusterExecutor(Executor):
    """Run calls on the nodes that have the resource ``harbor_sandbox``.

    Calls wait in one queue, and idle workers take the next one, so a slow node takes fewer. A call that loses its
    worker or node goes to the head of the queue and runs again elsewhere; its result and files are accepted once.
    Nodes that join are used. On a node that returns, the leftover sandboxes are removed first.

    Args:
        ray: The connected ``ray`` module.
        limits: The share of the cluster to use.
        output_dir: Files that a call writes below this path are written on the node, and copied here with its result.
    """

    def __init__(self, ray: Any, limits: ClusterLimits, *, output_dir: Path | None = None) -> None:
        self._ray, self._limits, self._output_dir = ray, limits, output_dir
        self._packer = CallPacker(output_dir)
        self._archives: dict[str, Any] = {}
        self._pending: deque[_Job] = deque()
        self._nodes: dict[str, _Node] = {}
        self._changed = threading.Condition()
        self._is_closed = self._is_cancelled = False
        self._refreshed_at = 0.0
        self._lonely_since: float | None = None
        self.reruns = 0
        """Retries of calls whose worker or node was lost."""

        self.played: Counter[str] = Counter()
        """Finished calls by node id."""

        self._limiter = None
        if limits.starts_per_sec is not None:
            self._limiter = ray.remote(Limiter).options(num_cpus=0).remote(limits.starts_per_sec, limits.burst)
        self._thread = threading.Thread(target=self._dispatch, name="harbor-gym-cluster", daemon=True)
        self._thread.start()

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call.

        Raises:
            RuntimeError: The executor is shut down.
            TaskError: A task of the call is not a directory of this machine.
        """
        call = self._packer.pack(fn, args, kwargs)
        job = _Job(call, Future())
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the executor is shut down")
            for digest in call.digests - self._archives.keys():
                self._archives[digest] = self._ray.put(self._packer.tasks[digest].archive)
            self._pending.append(job)
            self._changed.notify_all()
        return job.future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers. Idempotent.

        Args:
            wait: Wait for running calls.
            cancel_futures: Cancel queued calls and interrupt running ones: these close their sandboxes, and their
                futures raise ``InterruptedError``.
        """
        with self._changed:
            waiting, self._is_closed = list(self._pending) if cancel_futures else [], True
            if cancel_futures:
                self._pending.clear()
                self._is_cancelled = True
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()
        if cancel_futures:
            self._interrupt()
        if wait:
            self._thread.join()

    def granted_starts(self) -> int | None:
        """Return how many starts of sandboxes the limiter has allowed on all nodes; None without a limit. Blocks."""
        return None if self._limiter is None else int(self._ray.get(self._limiter.granted.remote()))

    # -- the dispatcher's thread -----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        try:
            while not self._is_finished():
                self._refresh()
                self._assign()
                self._collect()
        except Exception as exc:  # the thread's last resort: every waiting future must fail
            self._fail_all(exc)
        finally:
            self._end_workers()

    def _is_finished(self) -> bool:
        with self._changed:
            return self._is_closed and not self._pending and not any(worker.job for worker in self._workers)

    @property
    def _workers(self) -> list[_WorkerHandle]:
        return [worker for node in list(self._nodes.values()) for worker in node.workers]

    def _refresh(self) -> None:
        """Register nodes that joined, forget lost ones, and start workers where there is room."""
        now = time.monotonic()
        if now - self._refreshed_at < _REFRESH_SEC and self._nodes:
            return
        self._refreshed_at = now
        rooms = self._rooms()
        for node_id in self._nodes.keys() - rooms.keys():
            self._forget(node_id)
        for node_id in rooms.keys() - self._nodes.keys():
            agent = self._on(node_id, NodeAgent, num_cpus=0)
            self._nodes[node_id] = _Node(node_id, agent)
        self._start_workers(rooms)
        self._require_nodes(now)

    def _rooms(self) -> dict[str, int]:
        """Return node id → number of calls that the node has room for, of nodes that are alive."""
        each = self._limits.sandboxes_per_worker
        rooms = {
            node["NodeID"]: int(node["Resources"].get(RESOURCE, 0)) // each
            for node in self._ray.nodes()
            if node["Alive"]
        }
        return {node_id: room for node_id, room in rooms.items() if room}

    def _start_workers(self, rooms: Mapping[str, int]) -> None:
        """Start workers up to the limit, each on the node with the fewest."""
        for _ in range(self._limits.max_workers - len(self._workers)):
            free = [node for node in self._nodes.values() if len(node.workers) < rooms.get(node.node_id, 0)]
            if not free:
                return
            node = min(free, key=lambda item: len(item.workers))
            resources = {RESOURCE: self._limits.sandboxes_per_worker}
            actor = self._on(node.node_id, Worker, self._limiter, num_cpus=0, resources=resources)
            node.workers.append(_WorkerHandle(actor, node.node_id, actor.pid.remote()))

    def _on(self, node_id: str, kind: type, *args: Any, **options: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return self._ray.remote(kind).options(scheduling_strategy=strategy, **options).remote(*args)

    def _require_nodes(self, now: float) -> None:
        if self._nodes or not self._pending:
            self._lonely_since = None
            return
        self._lonely_since = now if self._lonely_since is None else self._lonely_since
        if now - self._lonely_since > self._limits.node_timeout_sec:
            raise SandboxStartError(
                f"no node of the Ray cluster has room for {self._limits.sandboxes_per_worker} sandboxes: start nodes "
                f"with --resources='{{\"{RESOURCE}\": N}}'"
            )

    def _assign(self) -> None:
        """Give queued calls to idle workers, first on the least busy nodes."""
        with self._changed:
            idle = [worker for worker in self._workers if worker.job is None]
            while idle and self._pending:
                busy = Counter(worker.node_id for worker in self._workers if worker.job is not None)
                worker = min(idle, key=lambda item: busy[item.node_id])
                idle.remove(worker)
                job = self._pending.popleft()
                if job.attempts or job.future.set_running_or_notify_cancel():
                    job.attempts += 1
                    tasks = {digest: [self._archives[digest]] for digest in job.call.digests}
                    worker.job, worker.reference = job, worker.actor.call.remote(job.call, tasks)

    def _collect(self) -> None:
        """Wait up to ``_POLL_SEC`` for results, and take those that are ready."""
        running = {worker.reference: worker for worker in self._workers if worker.job is not None}
        if not running:
            with self._changed:
                if not self._is_closed or self._pending:
                    self._changed.wait(_POLL_SEC if self._pending else _REFRESH_SEC)
            return
        ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_SEC)
        for reference in ready:
            self._take(running[reference])

    def _take(self, worker: _WorkerHandle) -> None:
        job, worker.job = worker.job, None
        assert job is not None
        try:
            result: PackedResult = self._ray.get(worker.reference)
        except self._ray.exceptions.RayTaskError as exc:
            self._end(job, exc.cause if isinstance(exc.cause, Exception) else exc)
        except self._ray.exceptions.RayError as exc:
            self._lose(worker, job, exc)
        else:
            self._accept(worker, job, result)

    def _accept(self, worker: _WorkerHandle, job: _Job, result: PackedResult) -> None:
        try:
            accept_files(result, self._output_dir)
            outcome = pickle.loads(result.payload)
        except Exception as exc:  # a result that can't be read: the caller gets the reason
            self._end(job, exc)
            return
        self.played[worker.node_id] += 1
        if result.is_error:
            self._end(job, outcome)
        else:
            job.future.set_result(outcome)

    def _lose(self, worker: _WorkerHandle, job: _Job, error: Exception) -> None:
        """Queue a call again after its worker or node was lost; fail it after the last attempt."""
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._drop(worker)
        if job.attempts >= self._limits.max_attempts:
            lost = SandboxLostError(f"a call lost its worker {job.attempts} times, the last time with {reason}")
            self._end(job, lost)
            return
        logger.warning("a worker on node %s was lost, and its call runs again: %s", worker.node_id[:8], reason)
        self.reruns += 1
        with self._changed:
            if self._is_cancelled:
                self._end(job, _interrupted())
                return
            self._pending.appendleft(job)
        self._refreshed_at = 0.0

    def _drop(self, worker: _WorkerHandle) -> None:
        node = self._nodes.get(worker.node_id)
        if node is not None and worker in node.workers:
            node.workers.remove(worker)
            self._ray.kill(worker.actor)
            node.agent.reap.remote()

    def _forget(self, node_id: str) -> None:
        """Queue the calls of a lost node again."""
        node = self._nodes[node_id]
        for worker in list(node.workers):
            if worker.job is not None:
                job, worker.job = worker.job, None
                self._lose(worker, job, ConnectionError("its node is gone"))
        del self._nodes[node_id]

    def _end(self, job: _Job, error: Exception) -> None:
        job.future.set_exception(error)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            self._is_closed = True
            jobs = [*self._pending, *(worker.job for worker in self._workers if worker.job is not None)]
            self._pending.clear()
        for worker in self._workers:
            worker.job = None
        for job in jobs:
            if job.attempts or job.future.set_running_or_notify_cancel():
                self._end(job, error)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Interrupt running calls, and wait until they have closed their sandboxes."""
        deadline = time.monotonic() + self._limits.interrupt_timeout_sec
        for worker in self._workers:
            node = self._nodes.get(worker.node_id)
            if worker.job is not None and node is not None:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.get(node.agent.interrupt.remote(self._ray.get(worker.pid, timeout=10)), timeout=10)
        while any(worker.job for worker in self._workers) and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
        for worker in self._workers:
            job, worker.job = worker.job, None
            if job is not None:
                self._end(job, _interrupted())

    def _end_workers(self) -> None:
        closing = [worker.actor.close.remote() for worker in self._workers]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SEC)
        for node in self._nodes.values():
            for worker in node.workers:
                self._ray.kill(worker.actor)
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(node.agent.reap.remote(), timeout=self._limits.interrupt_timeout_sec)
            self._ray.kill(node.agent)
        self._nodes.clear()
        if self._limiter is not None:
            self._ray.kill(self._limiter)


def _interrupted() -> InterruptedError:
    return InterruptedError("the run ended while this call was played")
