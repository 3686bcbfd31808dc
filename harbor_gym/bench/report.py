"""The base of all benchmark reports, and the report of ``bench step`` from its samples. No I/O."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.bench.implementations import HARBOR
from harbor_gym.bench.scenarios import ROWS


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Base of a benchmark's report. Its fields are JSON values, or dataclasses of these."""

    @property
    def is_right(self) -> bool:
        """Whether the figures count, because nothing that was timed went wrong."""
        return True

    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a step."""

    row: str
    implementation: str
    repetition: int
    seconds: float
    turns: int
    execs: int
    """Calls of ``environment.exec`` in all its turns."""

    observation: str | None
    """The observation of a step that went wrong; None if it was right."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """The samples of one step in one implementation."""

    row: str
    implementation: str
    median_ms: float
    p95_ms: float
    correct: int
    """Samples with the expected observation, out of ``of``."""

    of: int
    execs_per_step: float


@dataclass(frozen=True, slots=True)
class StepReport(BenchReport):
    """The results of ``harbor-gym bench step``."""

    sandbox: str
    repeat: int
    rows: tuple[StepRow, ...]

    ratios: dict[str, dict[str, float]]
    """Row → our implementation → speed-up over Harbor's: the median ratio of the same repetitions."""

    fallbacks: dict[str, int]
    """Implementation → turns that used another transport than the measured one."""

    unavailable: dict[str, str]
    """Implementation → why it could not be opened here."""

    wrong: tuple[dict[str, str], ...]
    """The first wrong observation of each row and implementation."""

    @property
    @override
    def is_right(self) -> bool:
        """Whether every step in our implementations had the expected observation."""
        return all(row.correct == row.of for row in self.rows if row.implementation != HARBOR)

    @override
    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object with ``rows`` and ``summary``."""
        return {
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "summary": {
                "env": self.sandbox,
                "repeat": self.repeat,
                "ratio_to_harbor": self.ratios,
                "all_correct": self.is_right,
                "fallbacks": self.fallbacks,
                "unavailable": self.unavailable,
                "wrong": list(self.wrong),
            },
        }


def summarize(
    samples: Sequence[Sample],
    *,
    sandbox: str,
    repeat: int,
    fallbacks: dict[str, int],
    unavailable: dict[str, str],
) -> StepReport:
    """Make the report from all samples of one run."""
    names = list(dict.fromkeys(sample.implementation for sample in samples))
    rows = tuple(
        _summarize_row(row, name, chosen)
        for row in ROWS
        for name in names
        if (chosen := [item for item in samples if (item.row, item.implementation) == (row, name)])
    )
    ratios = {
        row: {name: ratio for name in names if name != HARBOR and (ratio := _ratio(samples, row, name)) is not None}
        for row in ROWS
    }
    wrong: dict[tuple[str, str], str] = {}
    for item in samples:
        if item.observation is not None:
            wrong.setdefault((item.row, item.implementation), item.observation)
    return StepReport(
        sandbox=sandbox,
        repeat=repeat,
        rows=rows,
        ratios=ratios,
        fallbacks=fallbacks,
        unavailable=unavailable,
        wrong=tuple(
            {"row": row, "implementation": name, "observation": text[-1000:]} for (row, name), text in wrong.items()
        ),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest-rank method."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _summarize_row(row: str, name: str, samples: Sequence[Sample]) -> StepRow:
    milliseconds = [item.seconds * 1000 for item in samples]
    return StepRow(
        row=row,
        implementation=name,
        median_ms=round(statistics.median(milliseconds), 2),
        p95_ms=round(percentile(milliseconds, 95), 2),
        correct=sum(item.observation is None for item in samples),
        of=len(samples),
        execs_per_step=round(sum(item.execs for item in samples) / sum(item.turns for item in samples), 2),
    )


def _ratio(samples: Sequence[Sample], row: str, name: str) -> float | None:
    taken = {(item.implementation, item.repetition): item.seconds for item in samples if item.row == row}
    pairs = [
        (taken[HARBOR, repetition], seconds)
        for (implementation, repetition), seconds in taken.items()
        if implementation == name and (HARBOR, repetition) in taken
    ]
    return round(statistics.median(theirs / ours for theirs, ours in pairs), 2) if pairs else None


def format_table(report: StepReport) -> str:
    """Return the report for people."""
    titles = ("step", "terminal", "median ms", "p95 ms", "correct", "execs", "x Harbor")
    misread = {row.row for row in report.rows if row.implementation == HARBOR and row.correct < row.of}
    cells = [_cells(row, report, misread) for row in report.rows]
    lines = [plain_table(titles, cells, right=range(2, len(titles)))]
    if misread:
        lines.append("* Harbor's observation did not show the step's result: its time is that of not having waited.")
    lines += [f"{name} could not be opened: {reason}" for name, reason in report.unavailable.items()]
    lines += [f"{name} fell back in {count} turns" for name, count in report.fallbacks.items() if count]
    return "\n".join(lines)


def _cells(row: StepRow, report: StepReport, misread: set[str]) -> tuple[str, ...]:
    ratio = report.ratios[row.row].get(row.implementation)
    return (
        row.row,
        row.implementation,
        f"{row.median_ms:.1f}",
        f"{row.p95_ms:.1f}",
        f"{row.correct}/{row.of}",
        f"{row.execs_per_step:g}",
        "" if ratio is None else f"{ratio:.1f}{'*' if row.row in misread else ' '}",
    )
