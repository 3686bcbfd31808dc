"""The output of an audit: a table of kinds, rows for a spreadsheet, one object for programs."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.checking.audit.kinds import KINDS
from harbor_gym.tasks.receipts import EpisodeGrades, Finding, Receipt

FORMAT = 2
_PLACE = ("file", "line", "episode", "turn", "text", "reward")
_GRADES = ("sampled", "unreplayed", "flaky", "paid", "forged", "flake_rate", "forge_rate")
_COLUMNS = ("task", "source", "severity", "kind", "message", "remedy", *_PLACE, "digest", *_GRADES)


def summary(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Return one object: how many tasks each kind was found in, by source, and every receipt."""
    return {
        "format": FORMAT,
        "tasks": len(receipts),
        "clean": sum(receipt.is_clean for receipt in receipts),
        "kinds": {kind: dict(by_source) for kind, by_source in counts(receipts).items()},
        "episodes": None if (grades := episodes(receipts)) is None else grades.model_dump(),
        "receipts": [receipt.model_dump(mode="json") for receipt in receipts],
    }


def counts(receipts: Sequence[Receipt]) -> dict[str, Counter[str]]:
    """Return the number of tasks by kind and source, in the order of the kinds, without kinds of no task."""
    found = {kind: Counter[str]() for kind in KINDS}
    for receipt in receipts:
        for kind in {one.kind for one in receipt.findings}:
            found[kind][receipt.source or receipt.path] += 1
    return {kind: by_source for kind, by_source in found.items() if by_source}


def episodes(receipts: Sequence[Receipt]) -> EpisodeGrades | None:
    """Return how often the episodes of all tasks that were graded anew differ; None if none was."""
    grades = [receipt.episodes for receipt in receipts if receipt.episodes is not None]
    return EpisodeGrades.total(grades) if grades else None


def as_json(receipts: Sequence[Receipt]) -> str:
    """Return :func:`summary` as text."""
    return json.dumps(summary(receipts), indent=1) + "\n"


def as_csv(receipts: Sequence[Receipt]) -> str:
    """Return one row for each finding, with its first place."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(_COLUMNS)
    for receipt in receipts:
        for one in receipt.findings:
            first = one.evidence[0] if one.evidence else None
            place = [getattr(first, name, None) for name in _PLACE]
            head = (receipt.task, receipt.source, one.severity.value, one.kind, one.message, one.remedy)
            grades = [getattr(receipt.episodes, name, None) for name in _GRADES]
            rows.writerow([_cell(value) for value in (*head, *place, receipt.digest, *grades)])
    return text.getvalue()


def table(receipts: Sequence[Receipt]) -> str:
    """Return the number of tasks by kind, as text; empty where nothing was found."""
    rows = [
        [kind, KINDS[kind].severity.value, str(by_source.total()), f"{by_source.total() / len(receipts):.1%}"]
        for kind, by_source in counts(receipts).items()
    ]
    return plain_table(("kind", "severity", "tasks", "share"), rows, right=(2, 3)) if rows else ""


def line(task: str, found: Finding) -> str:
    """Return a finding on one line."""
    place = found.evidence[0].place if found.evidence else ""
    where = f" ({place})" if place else ""
    return f"{task}: {found.severity.value} {found.kind}: {found.message}{where}: {found.remedy}"


def _cell(value: object) -> object:
    """Return a cell that a spreadsheet takes for text: a formula begins with one of these signs."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
