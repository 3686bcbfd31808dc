"""Progress reports of long work."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator

type ShowBar = Callable[[str, int, int | None, str], None]
"""Called as ``bar(phase, done, total, detail)``. The phase is over when ``done`` equals ``total``. An unknown total is
None, and ``done`` counts seconds then."""

SLOW_SEC = 2.0
"""Seconds before work that is usually quick is shown."""

_TICK_SEC = 1.0

_receivers: list[ShowBar] = []
_running: dict[str, "Work"] = {}
_lock = threading.Lock()


def show_no_bar(phase: str, done: int, total: int | None, detail: str) -> None:
    """Show nothing."""


@contextlib.contextmanager
def shown_by(bar: ShowBar) -> Generator[None]:
    """Show this process's long work, of all its threads, with ``bar`` during the block."""
    _receivers.append(bar)
    try:
        yield
    finally:
        _receivers.remove(bar)


class Work:
    """Long work of this process: shown once, however many threads and tasks wait for it."""

    def __init__(self, phase: str, detail: str) -> None:
        self._phase, self.detail = phase, detail
        self._started = time.monotonic()
        self._due, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.holders = 0

    def begin(self) -> None:
        """Show the work from now on. Idempotent."""
        with _lock:
            if self._due.is_set():
                return
            self._due.set()
        self._show(self.seconds, None, self.detail)

    def tell(self, detail: str) -> None:
        """Show ``detail`` beside the phase from now on."""
        self.detail = detail

    def follow(self, delay_sec: float) -> None:
        """Show the work every second, once it has begun or the delay is over."""
        self._thread = threading.Thread(target=self._follow, args=(delay_sec,), name="harbor-gym-progress", daemon=True)
        self._thread.start()

    def end(self, result: str) -> None:
        """Print the result, if the progress was printed at all."""
        was_shown = self._due.is_set()
        self._over.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        if was_shown:
            self._show(1, 1, f"{result} after {self.seconds} s")

    @property
    def seconds(self) -> int:
        """Whole seconds since the work began."""
        return round(time.monotonic() - self._started)

    def _follow(self, delay_sec: float) -> None:
        if not self._due.wait(delay_sec):
            self.begin()
        while not self._over.wait(_TICK_SEC):
            self._show(self.seconds, None, self.detail)

    def _show(self, done: int, total: int | None, detail: str) -> None:
        if _receivers:
            with contextlib.suppress(OSError, ValueError):  # the output was closed
                _receivers[-1](self._phase, done, total, detail)


@contextlib.contextmanager
def ticking(phase: str, detail: str = "", *, delay_sec: float = 0.0) -> Generator[Work]:
    """Show that the block is running: its start, its duration every second, and its end.

    Concurrent blocks of one phase are shown as one.

    Args:
        phase: The work and its object.
        detail: Further text.
        delay_sec: Seconds before anything is shown, unless the block calls :meth:`Work.begin`.
    """
    with _lock:
        work = _running.get(phase)
        is_first = work is None
        if work is None:
            work = _running[phase] = Work(phase, detail)
        work.holders += 1
    if not delay_sec:
        work.begin()
    if is_first:
        work.follow(delay_sec)
    result = "failed"
    try:
        yield work
        result = "done"
    finally:
        with _lock:
            work.holders -= 1
            is_last = not work.holders
            if is_last:
                del _running[phase]
        if is_last:
            work.end(result)
