"""The result of a sweep as a table: the first and the last reward of each learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from harbor_gym._runtime.console.tables import markdown_table
from harbor_gym.report.metrics import Curves

WINDOW = 5
"""Number of batches at the beginning and at the end of a run whose means are compared: at most half of the run's."""

_HEADER = (
    "learning rate",
    "run",
    "batches",
    *(f"reward, first {WINDOW} at most", f"last {WINDOW} at most", "change"),
    *(f"turns, first {WINDOW} at most", f"last {WINDOW} at most", "change"),
)
_LEFT_COLUMNS = 2


@dataclass(frozen=True)
class Rate:
    """A sweep's runs with one learning rate, or a single run outside of a sweep."""

    label: str
    """The learning rate, or the name of a run outside of a sweep."""

    runs: Sequence[Curves]
    """The runs by seed."""


def group_by_rate(runs: Sequence[Curves]) -> list[Rate]:
    """Group a sweep's runs by learning rate, the highest first; other runs follow one by one."""

    def rate_of(run: Curves) -> float:
        return -(run.learning_rate or 0.0)

    swept = [run for run in runs if run.learning_rate is not None and run.seed is not None]
    ordered = sorted(swept, key=lambda run: (rate_of(run), run.seed or 0))
    rates = [Rate(f"{-rate:g}", tuple(group)) for rate, group in groupby(ordered, rate_of)]
    return rates + [Rate(run.name, (run,)) for run in runs if run not in swept]


def format_summary(runs: Sequence[Curves]) -> str:
    """Return a Markdown table with a row per run, and a row with the mean of each learning rate with several runs."""
    rows: list[tuple[str, ...]] = []
    for rate in group_by_rate(runs):
        ends = [_ends(run) for run in rate.runs]
        rows += [
            _row(_rate(run), _name(run), str(len(run.steps)), end) for run, end in zip(rate.runs, ends, strict=True)
        ]
        if len(ends) > 1:
            rows.append(_row(rate.label, "mean", "", [fmean(column) for column in zip(*ends, strict=True)]))
    return markdown_table(_HEADER, rows, right=range(_LEFT_COLUMNS, len(_HEADER)))


def _rate(run: Curves) -> str:
    return "-" if run.learning_rate is None else f"{run.learning_rate:g}"


def _name(run: Curves) -> str:
    return f"seed {run.seed}" if run.seed is not None else run.name


def _ends(run: Curves) -> list[float]:
    """Return the mean reward of a run's first and last batches, then of its turns; no batch is in both."""
    width = min(WINDOW, max(1, len(run.reward) // 2))
    return [fmean(part) if part else 0.0 for v in (run.reward, run.turns) for part in (v[:width], v[-width:])]


def _row(label: str, name: str, batches: str, ends: Sequence[float]) -> tuple[str, ...]:
    reward_change, turns_change = ("-", "-") if batches == "1" else (_change(*ends[:2]), _change(*ends[2:]))
    reward = (f"{ends[0]:.2f}", f"{ends[1]:.2f}", reward_change)
    turns = (f"{ends[2]:.1f}", f"{ends[3]:.1f}", turns_change)
    return (label, name, batches, *reward, *turns)


def _change(before: float, after: float) -> str:
    return f"{(after - before) / before:+.0%}" if before else "-"
