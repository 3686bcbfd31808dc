"""What a training run shows: a line a batch while it runs, and its curve as a picture."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from harbor_gym.errors import MissingDependencyError

POLL_SEC = 0.5
"""How often a run's metrics are looked at, in seconds."""

_REWARD = "env/all/reward/total"
_TURNS = "env/all/turns_per_episode"
_SECONDS = "time/total"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a cookbook ``metrics.jsonl`` that describe a training batch, in order.

    Args:
        path: The file; one that doesn't exist yet has no records. A last line still being written is left out.
    """
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            record = json.loads(line)
            if _REWARD in record:
                records.append(record)
    return records


def draw_curve(metrics_path: Path, picture_path: Path, *, title: str) -> None:
    """Draw reward and turns per episode against the batch, and replace ``picture_path`` (PNG) with it.

    Args:
        metrics_path: A cookbook ``metrics.jsonl``.
        picture_path: Where the picture goes.
        title: The picture's title.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('drawing curves needs matplotlib: pip install "harbor-gym[plot]"') from exc
    records = read_metrics(metrics_path)
    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1, sharex=True)
    for panel, key, label in zip(panels, (_REWARD, _TURNS), ("total reward", "turns per episode"), strict=True):
        panel.plot([r["step"] for r in records], [r[key] for r in records], marker="o", markersize=3)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("batch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_title(title)
    partial = picture_path.with_suffix(".partial.png")
    figure.savefig(partial, dpi=120)
    partial.replace(picture_path)


def describe_batch(record: dict[str, Any], *, total: int) -> str:
    """Return one line about a training batch.

    Args:
        record: A record that :func:`read_metrics` returned.
        total: Batches in the whole run.
    """
    ended = {key.removeprefix("env/all/ended/"): v for key, v in record.items() if key.startswith("env/all/ended/")}
    shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(ended.items(), key=lambda kv: -kv[1]) if share)
    return (
        f"batch {record['step'] + 1}/{total}  reward {record[_REWARD]:.2f}  turns {record[_TURNS]:.1f}  "
        f"{record.get(_SECONDS, 0.0):.0f} s  ({shares or 'no episodes'})"
    )


@contextlib.asynccontextmanager
async def following(log_path: Path, *, total: int, show: Callable[[str], None], title: str) -> AsyncGenerator[None]:
    """Show a line for each new batch and redraw ``curve.png`` while the block runs, to the last batch.

    Args:
        log_path: The run's folder.
        total: Batches in the whole run.
        show: Takes each line.
        title: The curve's title.
    """
    metrics_path = log_path / "metrics.jsonl"
    shown = len(read_metrics(metrics_path))
    stop = asyncio.Event()

    async def look() -> None:
        nonlocal shown
        records = read_metrics(metrics_path)
        for record in records[shown:]:
            show(describe_batch(record, total=total))
        if len(records) > shown:
            shown = len(records)
            await asyncio.to_thread(draw_curve, metrics_path, log_path / "curve.png", title=title)

    async def follow() -> None:
        while not stop.is_set():
            await look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SEC)
        await look()

    following_task = asyncio.create_task(follow(), name="harbor-gym-reporting")
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait((following_task,))
    following_task.result()


def calm_console() -> None:
    """Let the console show our own progress and everybody's warnings; the run's log file keeps the rest.

    Call it after the cookbook has set up logging.
    """

    def ours(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name.startswith("harbor_gym")

    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setFormatter(_Elapsed())
            handler.addFilter(ours)


class _Elapsed(logging.Formatter):
    """``[  12.3 s] message``, counted from the formatter's making."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.time()

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.created - self._start:7.1f} s] {level}{record.getMessage()}"
