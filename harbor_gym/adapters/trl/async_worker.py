"""The rollout worker of ``AsyncGRPOTrainer``: a separate process that plays groups while the trainer trains."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.interrupts import exit_on_sigterm
from harbor_gym._runtime.portal import get_portal
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.trl import layout
from harbor_gym.adapters.trl.groups import GroupPlan, GroupPlayer, Metrics
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.pool import close_shared_pools

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.layout import RolloutSample  # seconds to import

_METRICS_QUEUE_SIZE = 4096
_HEARTBEAT_SEC = 1.0
_POLL_SEC = 0.1
_STOP_TIMEOUT_SEC = 60.0
"""Longest wait for the sandboxes of all groups to stop before the process is killed, in seconds."""

logger = logging.getLogger(__name__)


class RolloutProcessError(HarborGymError):
    """The rollout process failed, ended, or hangs."""


@dataclass(frozen=True)
class _Wires:
    """The objects that both processes share."""

    rollouts: Any
    metrics: Any
    failures: Any
    """At most one exception, or its text if it can't be pickled."""
    version: Any
    heartbeat: Any
    """Time at which the rollout process was last seen alive, in seconds since the epoch."""

    @classmethod
    def make(cls, context: SpawnContext, queue_size: int) -> "_Wires":
        return cls(
            context.Queue(queue_size),
            context.Queue(_METRICS_QUEUE_SIZE),
            context.Queue(1),
            context.Value("i", 0),
            context.Value("d", 0.0),
        )


class HarborRolloutWorker:
    """Rollouts for ``AsyncGRPOTrainer(rollout_worker=…)``, exact to the token.

    ``HarborSpec.rollout_worker`` makes it. Groups run concurrently in a spawned process. The trained tokens are the
    engine's sampled tokens: nothing is rendered or tokenised again, so at staleness 0 every importance ratio is 1. A
    lost episode gives no sample, and counts in no baseline.

    Args:
        plan: The settings of the groups. It is pickled.
        queue_size: Most samples that wait for the trainer; while the queue is full, the groups wait.

    Raises:
        UsageError: The plan can't be pickled, or a number is out of range.
    """

    def __init__(self, plan: GroupPlan, *, queue_size: int) -> None:
        for name, value in (
            ("num_generations", plan.num_generations),
            ("groups_at_once", plan.groups_at_once),
            ("max_lost_groups", plan.max_lost_groups),
            ("queue_size", queue_size),
        ):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        try:
            pickle.dumps(plan)
        except Exception as exc:  # unpicklable objects raise errors of many kinds
            raise UsageError(
                f"the rollouts can't be sent to their process: {exc}; tokenizer and sampler must pickle (module-level "
                "functions and classes, no lambdas)"
            ) from exc
        self.plan = plan
        self._context = multiprocessing.get_context("spawn")
        self._wires = _Wires.make(self._context, queue_size)
        self._process: SpawnProcess | None = None
        self.rollout_buffer = self._wires.rollouts
        """The samples, for the trainer."""
        self.metrics_queue = self._wires.metrics
        """Each group's metrics, for the trainer."""

    def start(self) -> None:
        """Start the rollout process. The trainer calls this after it has sent the weights to the engine."""
        if self._process is not None:
            return
        self._wires.heartbeat.value = time.time()
        process = self._context.Process(
            target=_play_groups, args=(self.plan, self._wires), name="harbor-gym-rollouts", daemon=True
        )
        process.start()
        self._process = process

    def stop(self) -> None:
        """Stop the sandboxes of the rollout process, then end it. Idempotent; blocks."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.join(_STOP_TIMEOUT_SEC)
        if process.is_alive():
            logger.warning("the rollout process does not end after %g s: it is killed", _STOP_TIMEOUT_SEC)
            process.kill()
            process.join()

    def update_model_version(self, model_version: int) -> None:
        """Set the version of the weights for all later samples."""
        self._wires.version.value = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise if the rollout process failed or has not been seen alive for this many seconds.

        Raises:
            HarborGymError: The error with which the process failed.
            RolloutProcessError: The process ended or hangs.
        """
        with contextlib.suppress(queue.Empty):
            failure = self._wires.failures.get_nowait()
            if isinstance(failure, BaseException):
                raise failure
            raise RolloutProcessError(f"the rollout process failed: {failure}")
        if self._process is not None and not self._process.is_alive():
            raise RolloutProcessError(f"the rollout process ended with status {self._process.exitcode}; see its stderr")
        age = time.time() - self._wires.heartbeat.value
        if age > stale_after_s:
            raise RolloutProcessError(f"the rollout process was last seen alive {age:.0f} s ago")


# -- in the rollout process --------------------------------------------------------------------------------------------


def _play_groups(plan: GroupPlan, wires: _Wires) -> None:
    """Run the rollout process."""
    for item in (wires.rollouts, wires.metrics):
        item.cancel_join_thread()  # else the exit would wait for a trainer that no longer reads
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which stops this process
    exit_on_sigterm()
    _exit_with_parent()
    try:
        layout.load("RolloutSample")  # seconds, before any episode waits
        get_portal().call(_play, plan, wires)
    except Exception as exc:  # the end of the process: the trainer raises it
        wires.failures.put(_sendable(exc))
        logger.exception("the rollouts failed")
        sys.exit(1)


async def _play(plan: GroupPlan, wires: _Wires) -> None:
    async def emit(sample: "RolloutSample") -> None:
        while True:
            try:
                return wires.rollouts.put_nowait(sample)
            except queue.Full:
                await asyncio.sleep(_POLL_SEC)

    def report(metrics: Metrics) -> None:
        with contextlib.suppress(queue.Full):  # a trainer that logs nothing must not stop the rollouts
            wires.metrics.put_nowait(metrics)

    async def beat() -> None:
        while True:
            wires.heartbeat.value = time.time()
            await asyncio.sleep(_HEARTBEAT_SEC)

    player = GroupPlayer(plan, emit=emit, report=report, version=lambda: int(wires.version.value))
    try:
        async with task_group() as running:
            running.create_task(beat())
            running.create_task(player.run())
    finally:
        await close_shared_pools()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="harbor-gym-parent").start()


def _sendable(error: Exception) -> object:
    try:
        pickle.loads(pickle.dumps(error))  # an error may pickle and still not come back
    except Exception:  # of any kind, as above
        return f"{type(error).__name__}: {error}"
    return error
