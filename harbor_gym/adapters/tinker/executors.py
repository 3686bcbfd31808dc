"""Rollouts in other processes: executors for ``tinker_cookbook.rl.train.main(config, rollout_executor)``.

A worker plays one group at a time, all its episodes side by side, so more workers than groups in a batch are idle.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal, override

from harbor_gym.adapters.tinker.strategy import RetryThenMask
from harbor_gym.errors import UsageError


@contextlib.contextmanager
def rollout_executor(
    kind: Literal["process", "ray"],
    workers: int,
    strategy: RetryThenMask,
    *,
    output_dir: Path | None = None,
    group_size: int = 1,
    starts_per_sec: float | None = None,
) -> Generator[Executor]:
    """Yield an executor with so many workers, and end them with the block.

    A block that fails interrupts the groups that are under way; they close their sandboxes first.

    Args:
        kind: What the workers are: processes of this machine, or actors of a Ray cluster
            (:mod:`harbor_gym.cluster`), of the one that ``RAY_ADDRESS`` names or else of one on this machine.
        workers: How many.
        strategy: The run's. It records what fails in a worker, which has a copy.
        output_dir: With Ray: what groups write below it is brought back from the nodes.
        group_size: With Ray: sandboxes that a group holds at once, of a node's ``harbor_sandbox``.
        starts_per_sec: With Ray: starts of sandboxes of all nodes together; None is no limit.

    Raises:
        UsageError: There are to be no workers.
        MissingDependencyError: Ray is not installed.
    """
    if workers < 1:
        raise UsageError(f"rollouts need at least 1 worker, got {workers}")
    with contextlib.ExitStack() as stack:
        if kind == "process":
            executor = stack.enter_context(_processes(workers))
        else:
            from harbor_gym.cluster import ClusterLimits, connect

            limits = ClusterLimits(max_workers=workers, sandboxes_per_worker=group_size, starts_per_sec=starts_per_sec)
            executor = stack.enter_context(connect(limits, output_dir=output_dir))
        yield _Watched(executor, strategy)


class _Watched(Executor):
    """An executor whose failures the strategy learns of."""

    def __init__(self, executor: Executor, strategy: RetryThenMask) -> None:
        self._executor = executor
        self._strategy = strategy

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = self._executor.submit(fn, *args, **kwargs)
        future.add_done_callback(self._note)
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)

    def _note(self, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, Exception) and not isinstance(error, InterruptedError):
            self._strategy.note_fault(error)


@contextlib.contextmanager
def _processes(workers: int) -> Generator[Executor]:
    # Spawned: the Tinker client's threads don't survive a fork.
    context = multiprocessing.get_context("spawn")
    others = {child.pid for child in multiprocessing.active_children()}
    pool = _InterruptiblePool(workers, mp_context=context, initializer=_begin_worker)
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGINT)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, which passes it on once, and exit with it: a killed parent sends no signal."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="harbor-gym-parent").start()


class _InterruptiblePool(ProcessPoolExecutor):
    """A process pool whose calls end on SIGINT, while its idle workers don't mind one."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_call, fn, *args, **kwargs)


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # asyncio.run cancels its main task on SIGINT where the default handler stands, and what it runs then cleans up.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return fn(*args, **kwargs)
    except KeyboardInterrupt:
        # As it is it would end the parent's event loop, and hide what the run failed of.
        raise InterruptedError("the run ended while this group was played") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
