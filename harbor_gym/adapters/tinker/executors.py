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
from typing import Any, Literal, cast, override

from harbor_gym.adapters.tinker.strategy import RetryThenMask
from harbor_gym.errors import MissingDependencyError, UsageError


@contextlib.contextmanager
def rollout_executor(kind: Literal["process", "ray"], workers: int, strategy: RetryThenMask) -> Generator[Executor]:
    """Yield an executor with so many workers, and end them with the block.

    A block that fails interrupts the groups that are under way; they close their sandboxes first.

    Args:
        kind: What the workers are: processes of this machine, or actors of a Ray cluster, of the one that
            ``RAY_ADDRESS`` names or else of one on this machine.
        workers: How many.
        strategy: The run's. It records what fails in a worker, which has a copy.

    Raises:
        UsageError: There are to be no workers.
        MissingDependencyError: Ray is not installed.
    """
    if workers < 1:
        raise UsageError(f"rollouts need at least 1 worker, got {workers}")
    with (_processes if kind == "process" else _actors)(workers) as executor:
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


@contextlib.contextmanager
def _actors(workers: int) -> Generator[Executor]:
    try:
        import ray  # pyright: ignore[reportMissingImports]  # an extra that the development environment lacks
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('rollouts on Ray need it: pip install "harbor-gym[ray]"') from exc
    library = cast(Any, ray)
    is_ours = not library.is_initialized()
    if is_ours:
        is_local = "RAY_ADDRESS" not in os.environ
        library.init(**({"num_cpus": workers, "include_dashboard": False} if is_local else {}), log_to_driver=False)
    executor = _RayExecutor(library, workers)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        if is_ours:
            library.shutdown()


class _RayExecutor(Executor):
    """Ray actors as an executor: each call goes to the one with the least to do."""

    def __init__(self, ray: Any, workers: int) -> None:
        class Worker:
            def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return fn(*args, **kwargs)

        self._ray = ray
        self._actors = [ray.remote(Worker).options(num_cpus=1).remote() for _ in range(workers)]
        self._waiting = [0] * workers
        self._lock = threading.Lock()

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            chosen = min(range(len(self._actors)), key=self._waiting.__getitem__)
            self._waiting[chosen] += 1
        future: Future[Any] = self._actors[chosen].call.remote(fn, args, kwargs).future()
        future.add_done_callback(lambda _: self._done(chosen))
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the actors. What a group of theirs has open ends with them, or is reaped as that of any dead process."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor)

    def _done(self, actor: int) -> None:
        with self._lock:
            self._waiting[actor] -= 1
