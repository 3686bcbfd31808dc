"""An audit as one HTML file: its classes by source, its kinds, and each task's findings with their evidence."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from harbor_gym._runtime.files import StrPath, replace_text
from harbor_gym.report.page import fill
from harbor_gym.tasks.receipts import EpisodeGrades, Receipt, Severity

PAGE_NAME = "audit.html"
MAX_TASKS = 2000
"""Most tasks whose findings are on a page, the worst first."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of the table of classes by source."""

    source: str
    tasks: int
    clean: int
    counts: Mapping[str, Mapping[Severity, int]]
    """Class → severity → number of tasks."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """A row of the table of kinds."""

    kind: str
    severity: Severity
    tasks: int
    share: float


def write_audit_page(receipts: Sequence[Receipt], path: StrPath) -> None:
    """Write the page of an audit. An existing page is replaced atomically.

    Args:
        receipts: One for each task.
        path: The file.
    """
    sources = _sources(receipts)
    found = sorted(
        (receipt for receipt in receipts if receipt.findings),
        key=lambda receipt: (min(one.severity.rank for one in receipt.findings), receipt.task),
    )
    clean = sum(receipt.is_clean for receipt in receipts)
    html = fill(
        "audit.html.jinja",
        ("theme.js", "audit.js"),
        is_live=False,
        name=Path(path).resolve().parent.name,
        facts={"tasks": len(receipts), "clean": clean, "sandbox": _sandboxes(receipts), **_shares(receipts)},
        classes=sorted({name for row in sources for name in row.counts}),
        severities=list(Severity),
        sources=sources,
        kinds=_kinds(receipts),
        found=found[:MAX_TASKS],
        left_out=max(0, len(found) - MAX_TASKS),
    )
    replace_text(Path(path), html)


def _sandboxes(receipts: Sequence[Receipt]) -> str:
    return ", ".join(sorted({receipt.sandbox or "none: the files alone are read" for receipt in receipts}))


def _shares(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Return the rates of the episodes that were graded anew."""
    graded = [receipt.episodes for receipt in receipts if receipt.episodes is not None]
    return EpisodeGrades.total(graded).shares if graded else {}


def _sources(receipts: Sequence[Receipt]) -> list[SourceRow]:
    by_source: dict[str, list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        by_source[receipt.source or receipt.path].append(receipt)
    return [
        SourceRow(source, len(group), sum(one.is_clean for one in group), _counts(group))
        for source, group in by_source.items()
    ]


def _counts(receipts: Sequence[Receipt]) -> dict[str, Counter[Severity]]:
    counts: dict[str, Counter[Severity]] = defaultdict(Counter)
    for receipt in receipts:
        for name, severity in {(one.kind.partition("/")[0], one.severity) for one in receipt.findings}:
            counts[name][severity] += 1
    return dict(counts)


def _kinds(receipts: Sequence[Receipt]) -> list[KindRow]:
    tasks = Counter(pair for receipt in receipts for pair in {(one.kind, one.severity) for one in receipt.findings})
    rows = [KindRow(kind, severity, number, number / len(receipts)) for (kind, severity), number in tasks.items()]
    return sorted(rows, key=attrgetter("severity.rank", "kind"))
