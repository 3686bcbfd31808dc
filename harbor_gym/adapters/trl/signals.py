"""SIGTERM as an exit that cleans up."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_KILLED_STATUS = 128


def exit_cleanly_on_sigterm() -> Callable[[], object]:
    """Turn SIGTERM into an exit that closes every sandbox of this process, if nothing else handles it.

    Returns:
        A function that restores the previous handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None
    signal.signal(signal.SIGTERM, _exit_on)
    return lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(_KILLED_STATUS + number)
