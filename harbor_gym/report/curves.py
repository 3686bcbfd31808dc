"""Draw training curves as pictures with matplotlib (extra ``plot``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym._runtime.files import StrPath, replacing
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.report.metrics import read_metrics
from harbor_gym.report.table import Rate, group_by_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from harbor_gym.report.metrics import Curves

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Distinct also for colour-blind readers. Source: Okabe and Ito, Color Universal Design."""

_SHORT_NAME = 14
"""Longest name, in characters, with which the legend has four columns instead of one."""

_DASHES = ("-", "--", ":", "-.")
_REWARD = "env/all/reward/total"
_TURNS = "env/all/turns_per_episode"


def draw_curve(metrics_path: StrPath, picture_path: StrPath, *, title: str) -> None:
    """Draw one run's reward and turns per episode against the batch.

    Args:
        metrics_path: The cookbook's ``metrics.jsonl``.
        picture_path: The PNG file to write; an existing one is replaced.
        title: The picture's title.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        UsageError: matplotlib draws no pictures with the file's ending.
    """
    records = [record for record in read_metrics(metrics_path) if _REWARD in record]
    figure, panels = _two_panels(title)
    for panel, key in zip(panels, (_REWARD, _TURNS), strict=True):
        points = [(record["step"] + 1, record[key]) for record in records if key in record]
        panel.plot([x for x, _ in points], [y for _, y in points], color=COLOURS[0], marker="o", markersize=3)
    _finish(figure, panels, Path(picture_path), highest=max((record[_REWARD] for record in records), default=1.0))


def draw_rates(runs: Sequence[Curves], picture_path: StrPath, *, title: str) -> None:
    """Draw the reward and turns of several runs against the batch, with one line per run or learning rate.

    Args:
        runs: Runs of any length. A sweep's runs with the same learning rate are one line, the mean of the runs that
            reached each batch, with their range as a band.
        picture_path: The PNG file to write, in an existing folder.
        title: The picture's title.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        UsageError: matplotlib draws no pictures with the file's ending.
    """
    figure, panels = _two_panels(title)
    for index, rate in enumerate(group_by_rate(runs)):
        for panel, name in zip(panels, ("reward", "turns"), strict=True):
            _draw_rate(panel, rate, name, COLOURS[index % len(COLOURS)], _DASHES[index // len(COLOURS) % len(_DASHES)])
    longest = max((len(rate.label) for rate in group_by_rate(runs)), default=0)
    columns = 4 if longest <= _SHORT_NAME else 1
    legend = panels[0].legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)
    legend.set_title(_legend_title(runs))
    legend.set_alignment("left")
    _finish(figure, panels, Path(picture_path), highest=max((max(run.reward, default=0) for run in runs), default=1.0))


def _legend_title(runs: Sequence[Curves]) -> str:
    most = max((len(rate.runs) for rate in group_by_rate(runs)), default=0)
    if all(run.seed is None or run.learning_rate is None for run in runs):
        return "run"
    return f"learning rate (line: mean of {most} runs, band: their range)" if most > 1 else "learning rate"


def _draw_rate(panel: Axes, rate: Rate, name: str, colour: str, dashes: str) -> None:
    values: dict[int, list[float]] = {}
    for run in rate.runs:
        for step, value in zip(run.steps, getattr(run, name), strict=True):
            values.setdefault(step, []).append(value)
    steps = sorted(values)
    means = [sum(values[step]) / len(values[step]) for step in steps]
    batches = [step + 1 for step in steps]
    panel.plot(batches, means, color=colour, linestyle=dashes, linewidth=1.8, label=rate.label)
    if len(rate.runs) > 1:
        low, high = [min(values[step]) for step in steps], [max(values[step]) for step in steps]
        panel.fill_between(batches, low, high, color=colour, alpha=0.15, linewidth=0)


def _two_panels(title: str) -> tuple[Figure, Sequence[Axes]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('drawing curves needs matplotlib: pip install "harbor-gym[plot]"') from exc
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for panel, label in zip(panels, ("total reward", "turns per episode"), strict=True):
        panel.set_ylabel(label)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25, linewidth=0.6)
    panels[-1].set_xlabel("batch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, x=0.02, ha="left", fontsize=11)
    return figure, panels


def _finish(figure: Figure, panels: Sequence[Axes], picture_path: Path, *, highest: float) -> None:
    if highest <= 1:
        panels[0].set_ylim(-0.03, 1.03)
    panels[1].set_ylim(bottom=0)
    kind = picture_path.suffix.removeprefix(".") or "png"
    if kind.lower() not in (known := figure.canvas.get_supported_filetypes()):
        raise UsageError(f"{picture_path} is no picture's name: end it in {', '.join(f'.{name}' for name in known)}")
    with replacing(picture_path) as partial:
        figure.savefig(partial, dpi=140, format=kind)
