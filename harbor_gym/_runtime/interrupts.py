"""SIGTERM as Ctrl-C: what cleans up after one cleans up after the other."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM ended, as shells report it."""


class Termination:
    """Whether SIGTERM has arrived."""

    arrived = False


@contextlib.contextmanager
def sigterm_as_interrupt() -> Generator[Termination]:
    """Turn a SIGTERM during the block into a SIGINT: an event loop cancels its main task then, and all is closed.

    Does nothing outside the main thread, where signals are not handled.
    """
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        termination.arrived = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)
