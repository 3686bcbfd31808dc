"""The progress of a training run: a line per batch, and the curve as a picture."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harbor_gym._runtime.console.progress import ShowBar, show_no_bar
from harbor_gym._runtime.files import StrPath
from harbor_gym.errors import MissingDependencyError, printable
from harbor_gym.report.curves import draw_curve
from harbor_gym.report.metrics import METRICS_NAME, read_metrics, read_records

POLL_SEC = 0.5
"""Seconds between two reads of a run's metrics."""

_RECENT_BATCHES = 5
"""Number of last batches whose mean time predicts the rest; the first batches also compile and start things."""

_REWARD = "env/all/reward/total"
_TURNS = "env/all/turns_per_episode"
_SECONDS = "time/total"
_ENDED = "env/all/ended/"
_DROPPED = "env/all/stragglers/dropped"
_LOST = "rollout_errors/total"

PHASES = {
    "sampling": ("sampling", "trajectory_group_worker"),
    "training": ("train_step",),
    "saving": ("save_checkpoint_and_get_sampling_client", "save_checkpoint"),
    "evaluating": ("run_evals", "run_evaluations_parallel"),
}
"""Phase → the cookbook's spans that measure it; the first one in a record counts."""

logger = logging.getLogger(__name__)


def phases(record: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase in a batch's record. Concurrent phases may add up to more than the total."""
    found: dict[str, float] = {}
    for phase, spans in PHASES.items():
        times = (record.get(f"time/{span}{end}") for span in spans for end in ("", ":total"))
        seconds = next((time for time in times if time is not None), None)
        if seconds is not None:
            found[phase] = seconds
    return found


def outcomes(record: dict[str, Any]) -> dict[str, float]:
    """Return end reason → share of a batch's episodes, the most common first, without shares of 0."""
    ended = {key.removeprefix(_ENDED): share for key, share in record.items() if key.startswith(_ENDED) and share}
    return dict(sorted(ended.items(), key=lambda item: -item[1]))


def seconds_left(records: Sequence[dict[str, Any]], *, total: int) -> float | None:
    """Estimate the seconds that the rest of a run takes, from its last batches; None if they have no times.

    Args:
        records: The batches so far.
        total: Batches in the whole run.
    """
    recent = [record[_SECONDS] for record in records[-_RECENT_BATCHES:] if _SECONDS in record]
    if not recent:
        return None
    return sum(recent) / len(recent) * max(0, total - 1 - records[-1]["step"])


def describe_batch(record: dict[str, Any], *, total: int, left_sec: float | None = None) -> str:
    """Return one line about a training batch.

    Args:
        record: A record of :func:`harbor_gym.report.read_metrics`.
        total: Batches in the whole run.
        left_sec: Estimated seconds until the run's end.
    """
    shares = ", ".join(f"{name} {share:.0%}" for name, share in outcomes(record).items())
    result = f"reward {record[_REWARD]:.2f}  turns {record.get(_TURNS, 0.0):.1f}" if _REWARD in record else "skipped"
    line = (
        f"batch {record['step'] + 1}/{total}  {result}  ({shares or 'no episodes'})  {record.get(_SECONDS, 0.0):.0f} s"
    )
    if parts := ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in phases(record).items() if seconds >= 1):
        line += f" ({parts})"
    if dropped := record.get(_DROPPED):
        line += f"  {dropped:.1f} dropped a group"
    if lost := record.get(_LOST):
        line += f"  {lost:.0f} failed so far"
    return line + (f"  ETA {duration(left_sec)}" if left_sec else "")


def duration(seconds: float) -> str:
    """Return a number of seconds for people, such as ``3 min 05 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextlib.asynccontextmanager
async def live_progress(
    log_path: StrPath,
    *,
    total: int,
    show: Callable[[str], None],
    title: str,
    bar: ShowBar = show_no_bar,
    on_batch: Callable[[Mapping[str, Any], int], None] | None = None,
) -> AsyncGenerator[None]:
    """Show a line for each new batch and redraw ``curve.png`` while the block runs.

    If the curve can't be drawn, one warning is logged, and the block goes on.

    Args:
        log_path: The run's folder.
        total: Batches in the whole run.
        show: Takes each line.
        title: The curve's title.
        bar: Takes the number of finished batches, with the remaining time.
        on_batch: Takes the record of each new batch, and its number.
    """
    log_path = Path(log_path)
    metrics_path = log_path / METRICS_NAME
    shown = len(read_records(metrics_path))
    picture = _Picture(metrics_path, log_path / "curve.png", title)
    stop = asyncio.Event()
    bar("batches", len(read_metrics(metrics_path)), total, "")

    async def show_new() -> None:
        nonlocal shown
        records = await asyncio.to_thread(read_records, metrics_path)
        for number, record in enumerate(records[shown:], start=shown + 1):
            left_sec = seconds_left(records[:number], total=total)
            show(describe_batch(record, total=total, left_sec=left_sec))
            bar("batches", record["step"] + 1, total, f"ETA {duration(left_sec)}" if left_sec else "")
            if on_batch is not None:
                on_batch(record, record["step"])
        if len(records) > shown:
            shown = len(records)
            await asyncio.to_thread(picture.draw)

    async def follow() -> None:
        while not stop.is_set():
            await show_new()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SEC)
        await show_new()

    following_task = asyncio.create_task(follow(), name="harbor-gym-reporting")
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait((following_task,))
    following_task.result()


class _Picture:
    """Draws the curve of an unfinished run, and warns once if that fails."""

    def __init__(self, metrics_path: Path, path: Path, title: str) -> None:
        self._metrics_path = metrics_path
        self._path = path
        self._title = title
        self._has_failed = False

    def draw(self) -> None:
        try:
            draw_curve(self._metrics_path, self._path, title=self._title)
        except (MissingDependencyError, OSError) as error:
            if not self._has_failed:
                logger.warning("the run continues without %s: %s", self._path, error)
            self._has_failed = True


def quiet_console() -> None:
    """Limit console logging to this package's messages and all warnings; the run's log file keeps the rest.

    Call it after the cookbook has set up logging.
    """

    def ours(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name.startswith("harbor_gym")

    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setFormatter(_Elapsed())
            handler.addFilter(ours)


class _Elapsed(logging.Formatter):
    """Formats ``[  12.3 s] message``, with seconds since the formatter's creation."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.time()

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.created - self._start:7.1f} s] {level}{printable(record.getMessage())}"
