"""Shared functions of the scripts that draw figures into a page: reports in one JSON file, marked sections of pages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
END = "<!-- end of figures -->"


def mark(script: str) -> str:
    """Return the first line of a script's section."""
    return f"<!-- figures: drawn by .ci/docs/{script} -->"


def add_reports(store: Path, files: list[str], key_of: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Add the reports in ``files`` to those in ``store``, each in place of one with its key, and return all."""
    reports: dict[str, Any] = json.loads(store.read_text(encoding="utf-8"))
    for file in files:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        reports[key_of(report)] = report
    store.write_text(json.dumps(dict(sorted(reports.items())), indent=1) + "\n", encoding="utf-8")
    return reports


def replace_section(page: str, begin: str, parts: list[str]) -> str:
    """Return the page with its figures replaced."""
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"the page has no {begin} … {END} for its figures")
    return f"{head}{begin}\n\n{'\n\n'.join(parts) or 'Nothing was measured yet.'}\n\n{END}{tail}"


def table(titles: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table whose cells are not padded: a figure that changes changes its own line alone."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *lines))
