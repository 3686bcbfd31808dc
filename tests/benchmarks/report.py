"""The base of all benchmark reports, and what they have in common. No I/O."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harbor_gym._runtime.console.tables import plain_table


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


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest-rank method."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def rotate[T](items: list[T], by: int) -> list[T]:
    """Return the items rotated by ``by``, so that none is always the first."""
    start = by % len(items)
    return items[start:] + items[:start]


def format_fields(report: BenchReport) -> str:
    """Return a report without rows for people: a line for each field."""
    return plain_table((), [(name, str(value)) for name, value in report.as_object().items()])
