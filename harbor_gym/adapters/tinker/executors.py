"""Rollouts in other processes: executors for ``tinker_cookbook.rl.train.main(config, rollout_executor)``.

A worker plays one group at a time, all its episodes concurrently, so workers beyond the groups in a batch are idle.
"""

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any, override

from harbor_gym.adapters.tinker.strategy import RetryThenMask
from harbor_gym.cluster.workers import open_executor
from harbor_gym.types import ExecutorKind


@contextlib.contextmanager
def rollout_executor(kind: ExecutorKind, workers: int, strategy: RetryThenMask, **options: Any) -> Generator[Executor]:
    """Yield an executor, and end its workers after the block; see :func:`harbor_gym.cluster.workers.open_executor`.

    Args:
        kind: Processes of this machine, or actors of a Ray cluster.
        workers: Number of workers.
        strategy: The run's strategy. It records failures in workers, which have copies of it.
        options: Further arguments of ``open_executor``.
    """
    with open_executor(kind, workers, **options) as executor:
        yield _Watched(executor, strategy)


class _Watched(Executor):
    """An executor that reports its failures to the strategy."""

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
