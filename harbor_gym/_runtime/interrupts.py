"""SIGTERM and SIGHUP handled as Ctrl-C, or as an exit, so that the same code cleans up after all."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import NoReturn


class Termination:
    """The signal that has arrived."""

    status = 0
    """The exit code of a process that the signal ended, as shells report it; 0 where none has arrived."""


@contextlib.contextmanager
def ends_as_interrupts() -> Generator[Termination]:
    """Turn SIGTERM and SIGHUP into a SIGINT during the block: an event loop cancels its main task, and all is closed.

    A process that was started ignoring SIGINT, such as a shell's background job, gets a ``KeyboardInterrupt`` as well.
    One that ignores SIGHUP, as under nohup, goes on ignoring it.
    Does nothing outside the main thread, where signals are not handled.
    """
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        is_first = not termination.status
        termination.status = termination.status or 128 + number
        if number == signal.SIGHUP and not is_first:
            return  # a closing terminal may send several: the clean-up is not interrupted
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    heard = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else [])]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield termination
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_on_sigterm() -> Callable[[], object]:
    """Turn SIGTERM into an exit of this process that runs all cleanup, if nothing else handles it.

    Returns:
        A function that restores the previous handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None
    signal.signal(signal.SIGTERM, _exit)
    return lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
