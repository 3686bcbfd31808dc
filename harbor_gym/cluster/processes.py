"""Run calls in other processes of this machine, which end when the run is interrupted or killed."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, override


@contextlib.contextmanager
def process_executor(workers: int) -> Generator[Executor]:
    """Yield a pool of processes. A block that fails interrupts running calls, which close their sandboxes."""
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
    """Leave Ctrl-C to the parent, which passes it on once; exit with the parent, since a killed one sends no signal."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="harbor-gym-parent").start()


class _InterruptiblePool(ProcessPoolExecutor):
    """A process pool whose calls end on SIGINT, while its idle workers ignore it."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_call, fn, *args, **kwargs)


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # With the default handler, asyncio.run cancels its main task on SIGINT, and the call cleans up.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return fn(*args, **kwargs)
    except KeyboardInterrupt:
        # A KeyboardInterrupt would end the parent's event loop and hide why the run failed.
        raise InterruptedError("the run ended while this call was played") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
