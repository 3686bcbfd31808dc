"""An executor over the nodes of a Ray cluster: every call ends exactly once, also if nodes or workers are lost."""

import contextlib
import itertools
import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from harbor_gym._runtime.files import StrPath
from harbor_gym.cluster.actors import Limiter, NodeAgent, Worker
from harbor_gym.cluster.calls import CallPacker, PackedCall, PackedResult, accept_files
from harbor_gym.errors import SandboxLostError, SandboxStartError, UsageError

RESOURCE = "harbor_sandbox"
"""Ray's custom resource: how many sandboxes a node holds at once."""

_POLL_SEC = 0.25
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
class _Worker:
    actor: Any
    node_id: str = ""
    pid: int = 0
    """Its process on its node; 0 before Ray has started it."""


class ClusterExecutor(Executor):
    """Run calls on the nodes that have the resource ``harbor_sandbox``.

    Ray places the workers, also on nodes that join later. Calls wait in one queue, and idle workers take the next one,
    so a slow node takes fewer. A call that loses its worker or node runs again on the next idle worker; its result and
    files are accepted once. On a node that returns, the leftover sandboxes are removed first.

    Args:
        ray: The connected ``ray`` module.
        limits: The share of the cluster to use.
        output_dir: Files that a call writes below this path are written on the node, and copied here with its result.
    """

    def __init__(self, ray: Any, limits: ClusterLimits, *, output_dir: StrPath | None = None) -> None:
        self._ray, self._limits = ray, limits
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._packer = CallPacker(self._output_dir)
        self._archives: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._is_cancelled = self._is_ended = False
        self._workers: set[_Worker] = set()
        self._busy: set[_Worker] = set()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._agents: dict[str, Any] = {}
        self.reruns = 0
        """Retries of calls whose worker or node was lost."""

        self._limiter = None
        if limits.starts_per_sec is not None:
            self._limiter = ray.remote(Limiter).options(num_cpus=0).remote(limits.starts_per_sec, limits.burst)
        # A call holds a thread until it ends, and a worker only while that plays it.
        self._calls = ThreadPoolExecutor(limits.max_workers, thread_name_prefix="harbor-gym-cluster")
        for _ in range(limits.max_workers):
            self._start_worker()

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call.

        Raises:
            RuntimeError: The executor is shut down.
            TaskError: A task of the call is not a directory of this machine.
        """
        call = self._packer.pack(fn, args, kwargs)
        for digest in call.digests - self._archives.keys():
            self._archives[digest] = self._ray.put(self._packer.tasks[digest].archive)
        return self._calls.submit(self._run, call)

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers. Idempotent.

        Args:
            wait: Wait for running calls.
            cancel_futures: Cancel queued calls and interrupt running ones: these close their sandboxes, and their
                futures raise ``InterruptedError``.
        """
        self._calls.shutdown(wait=False, cancel_futures=cancel_futures)
        if cancel_futures:
            self._interrupt()
        ending = threading.Thread(target=self._end, name="harbor-gym-cluster-end", daemon=True)
        ending.start()
        if wait:
            ending.join()

    def granted_starts(self) -> int | None:
        """Return how many starts of sandboxes the limiter has allowed on all nodes; None without a limit. Blocks."""
        return None if self._limiter is None else int(self._ray.get(self._limiter.granted.remote()))

    # -- one call, in its thread -----------------------------------------------------------------------------------

    def _run(self, call: PackedCall) -> Any:
        """Give a call to one worker after another until one plays it to its end.

        Raises:
            InterruptedError: The executor was shut down.
            SandboxStartError: No node has room.
            SandboxLostError: The call lost its worker ``max_attempts`` times.
            Exception: The call's own.
        """
        errors = self._ray.exceptions
        tasks = {digest: [self._archives[digest]] for digest in call.digests}
        for attempt in itertools.count(1):
            worker = self._take_idle()
            try:
                result: PackedResult = self._ray.get(worker.actor.call.remote(call, tasks))
            except errors.RayTaskError as exc:
                self._idle.put(worker)
                raise exc.cause if isinstance(exc.cause, Exception) else exc from None
            except errors.RayError as exc:
                self._replace(worker)
                self._note_loss(worker, exc, attempt)
            else:
                self._idle.put(worker)
                return self._outcome(result)
            finally:
                self._busy.discard(worker)
        raise AssertionError("there is no end to the attempts' numbers")

    def _outcome(self, result: PackedResult) -> Any:
        accept_files(result, self._output_dir)
        outcome = pickle.loads(result.payload)
        if result.is_error:
            raise outcome
        return outcome

    def _note_loss(self, worker: _Worker, error: Exception, attempt: int) -> None:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if self._is_cancelled:
            raise _interrupted()
        if attempt >= self._limits.max_attempts:
            raise SandboxLostError(f"a call lost its worker {attempt} times, the last time with {reason}")
        logger.warning("a worker on node %s was lost, and its call runs again: %s", worker.node_id[:8], reason)
        self.reruns += 1

    # -- workers and nodes -----------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        """Let Ray start a worker where there is room; it is idle then."""
        resources = {RESOURCE: self._limits.sandboxes_per_worker}
        kind = self._ray.remote(Worker).options(num_cpus=0, resources=resources, scheduling_strategy="SPREAD")
        worker = _Worker(kind.remote(self._limiter))
        self._workers.add(worker)
        placed: Future[Any] = worker.actor.place.remote().future()
        placed.add_done_callback(lambda _: self._welcome(worker, placed))

    def _welcome(self, worker: _Worker, placed: Future[Any]) -> None:
        """Let the agent of its node remove the leftovers there at once, also where no call is left to play."""
        if placed.exception() is None and not self._is_ended:
            worker.node_id, worker.pid = placed.result()
            self._agent(worker.node_id)
        self._idle.put(worker)

    def _take_idle(self) -> _Worker:
        """Wait for an idle worker, and mark it as busy. A worker that was lost while it was idle is replaced."""
        never_started, lonely_since = 0, time.monotonic()
        while never_started < self._limits.max_attempts:
            if self._is_cancelled:
                raise _interrupted()
            try:
                worker = self._idle.get(timeout=_POLL_SEC)
            except queue.Empty:
                lonely_since = time.monotonic() if self._has_room() else lonely_since
                self._require_room(lonely_since)
                continue
            if self._answers(worker):
                with self._lock:  # so that an interrupt misses no call
                    if self._is_cancelled:
                        raise _interrupted()
                    self._busy.add(worker)
                return worker
            never_started += 0 if worker.pid else 1
            self._replace(worker)
        raise SandboxLostError(f"{never_started} workers did not start on the nodes of the Ray cluster: see Ray's logs")

    def _answers(self, worker: _Worker) -> bool:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(worker.actor.place.remote())
            return True
        return False

    def _agent(self, node_id: str) -> Any:
        """Return the agent of a node, which begins with the removal of the leftovers there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._lock:
            if node_id not in self._agents:
                there = NodeAffinitySchedulingStrategy(node_id, soft=False)
                kind = self._ray.remote(NodeAgent).options(num_cpus=0, scheduling_strategy=there)
                self._agents[node_id] = kind.remote()
            return self._agents[node_id]

    def _replace(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        self._ray.kill(worker.actor)
        if worker.node_id:
            self._agent(worker.node_id).reap.remote()
        if not self._is_cancelled:
            self._start_worker()

    def _nodes(self) -> list[str]:
        """Return the ids of the living nodes with room for a call."""
        each = self._limits.sandboxes_per_worker
        found = [node for node in self._ray.nodes() if node["Alive"]]
        return [node["NodeID"] for node in found if int(node["Resources"].get(RESOURCE, 0)) >= each]

    def _has_room(self) -> bool:
        return bool(self._busy or self._nodes())

    def _require_room(self, lonely_since: float) -> None:
        if time.monotonic() - lonely_since > self._limits.node_timeout_sec:
            raise SandboxStartError(
                f"no node of the Ray cluster has room for {self._limits.sandboxes_per_worker} sandboxes: start nodes "
                f"with --resources='{{\"{RESOURCE}\": N}}'"
            )

    # -- the end ---------------------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Interrupt running calls, and wait until they have closed their sandboxes."""
        with self._lock:
            self._is_cancelled = True
            running = list(self._busy)
        for worker in running:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._agent(worker.node_id).interrupt.remote(worker.pid), timeout=10)
        deadline = time.monotonic() + self._limits.interrupt_timeout_sec
        while self._busy and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
        for worker in list(self._busy):
            self._ray.kill(worker.actor)

    def _end(self) -> None:
        """Wait for the running calls, then end the workers and remove what is left on each node."""
        self._calls.shutdown(wait=True)
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        closing = [worker.actor.close.remote() for worker in self._workers if worker.pid]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SEC)
        for worker in self._workers:
            self._ray.kill(worker.actor)
        for node_id in self._nodes():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._agent(node_id).reap.remote(), timeout=self._limits.interrupt_timeout_sec)
        for agent in self._agents.values():
            self._ray.kill(agent)
        if self._limiter is not None:
            self._ray.kill(self._limiter)


def _interrupted() -> InterruptedError:
    return InterruptedError("the run ended while this call was played")
