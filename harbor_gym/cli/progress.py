"""Show the progress of long work: rich's bars on a terminal, plain lines without colour codes elsewhere."""

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Protocol, Self, override

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from harbor_gym._runtime.console.progress import shown_by
from harbor_gym._runtime.console.under_way import under_way
from harbor_gym.cli.shared import echo
from harbor_gym.errors import printable

_TENTHS = 10
_EPISODES = 8
"""Episodes under way that are shown, those that have done the same for the longest time."""

_LINE_SEC = 15
"""Seconds between two plain lines about work of unknown length."""


class ShowsProgress(Protocol):
    """Shows the progress of long work."""

    def line(self, text: str) -> None:
        """Show a permanent line."""
        ...

    def bar(self, phase: str, done: int, total: int | None, detail: str = "") -> None:
        """Show the progress of a phase, which ends when ``done`` is ``total``.

        Args:
            phase: The phase's name.
            done: Units of finished work, or seconds so far if ``total`` is None.
            total: Units of all work; None if unknown.
            detail: Further text.
        """
        ...


class PlainProgress:
    """Prints a line per tenth of a phase; if its length is unknown, at its start, every 15 seconds, and at its end.

    Args:
        echo: Prints a line.
        every_sec: Seconds between two lines about a phase of unknown length.
    """

    def __init__(self, echo: Callable[[str], object] = echo, *, every_sec: int = _LINE_SEC) -> None:
        self._echo = echo
        self._every_sec = every_sec
        self._tenths: dict[str, int] = {}
        self._seconds: dict[str, int] = {}

    def line(self, text: str) -> None:
        """Print the line."""
        self._echo(text)

    def bar(self, phase: str, done: int, total: int | None, detail: str = "") -> None:
        """Print a line if there was enough progress since the phase's last line."""
        if total is None:
            self._tick(phase, done, detail)
        elif self._seconds.pop(phase, None) is not None:
            self._echo(f"{phase}: {detail}")
        elif (part := done * _TENTHS // total if total else _TENTHS) > self._tenths.get(phase, 0):
            self._tenths[phase] = part
            self._echo(f"{phase} {done}/{total}" + (f"  {detail}" if detail else ""))

    def _tick(self, phase: str, seconds: int, detail: str) -> None:
        if phase in self._seconds and seconds - self._seconds[phase] < self._every_sec:
            return
        shown = f": {seconds} s" if phase in self._seconds else ""
        self._seconds[phase] = seconds
        self._echo(f"{phase}{shown}" + (f"  {detail}" if detail else ""))


class _Bars(Progress):
    """Bars, and below them a line for each episode that is under way in this process."""

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        episodes = under_way()
        for episode in episodes[:_EPISODES]:
            yield Text(f"  {printable(str(episode))}", no_wrap=True, overflow="ellipsis")
        if len(episodes) > _EPISODES:
            yield Text(f"  and {len(episodes) - _EPISODES} more episodes")


class RichProgress:
    """Draws bars below the permanent lines, and what each episode under way does. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._progress = _Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._timed: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        """Print the line above the bars."""
        self._progress.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def bar(self, phase: str, done: int, total: int | None, detail: str = "") -> None:
        """Draw the bar; a phase that ends becomes a line."""
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total, detail=detail)
        self._progress.update(self._tasks[phase], completed=done, total=total, detail=detail)
        if total is None:
            self._timed.add(phase)
        elif done >= total:
            self._progress.remove_task(self._tasks.pop(phase))
            if phase in self._timed:
                self._timed.remove(phase)
                self.line(f"{phase}: {detail}")
            else:
                self.line(f"{phase} {done}/{total}" + (f"  {detail}" if detail else ""))


@contextlib.contextmanager
def progress(console: Console | None = None) -> Generator[ShowsProgress]:
    """Yield bars if standard output is a terminal, else plain lines; all long work in the block is shown there."""
    console = console or Console()
    if not console.is_terminal or console.is_dumb_terminal:
        plain = PlainProgress()
        with shown_by(plain.bar):
            yield plain
        return
    with RichProgress(console) as shown, shown_by(shown.bar):
        yield shown


class _Lines:
    def line(self, text: str) -> None:
        echo(text)

    def bar(self, phase: str, done: int, total: int | None, detail: str = "") -> None:
        pass


@contextlib.contextmanager
def bars_on_a_terminal() -> Generator[ShowsProgress]:
    """Yield bars if standard output is a terminal, else the lines alone, for a command whose lines say all."""
    console = Console()
    if not console.is_terminal:
        yield _Lines()
        return
    with progress(console) as shown:
        yield shown
