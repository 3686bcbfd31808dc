"""SIGTERM and SIGHUP handled as Ctrl-C, so that the same code cleans up after all three."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Generator
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


def end_at_interrupt_of_module(name: str) -> None:
    """End the process at Ctrl-C, unless it is ignored, where ``python -m NAME`` imports the package to run it.

    A library that is being imported may swallow the exception.
    """
    is_starting = sys.argv[:1] == ["-m"] and name in sys.orig_argv  # as the interpreter has it until the module runs
    if is_starting and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_now)


def end_now(number: int, _frame: FrameType | None) -> NoReturn:
    """End the process with the status of a signal. Nothing has been started or written."""
    os._exit(128 + number)
