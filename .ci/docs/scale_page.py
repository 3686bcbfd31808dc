"""Draw the figures of docs/scale.md from docs/scale.json: reports of ``harbor-gym bench`` as they were printed.

harbor-gym bench scale --sandboxes 1000 --json > scale.json
harbor-gym bench soak --episodes 20000 --json > soak.json
python .ci/docs/scale_page.py scale.json soak.json      # adds or replaces them, and draws the page
python .ci/docs/scale_page.py                           # draws the page from what is there
"""

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- figures: drawn by .ci/docs/scale_page.py -->", "<!-- end of figures -->"


def main(files: list[str]) -> None:
    """Add the reports in ``files``, and draw the page."""
    store = DOCS / "scale.json"
    reports: dict[str, Any] = json.loads(store.read_text())
    for file in files:
        report = json.loads(Path(file).read_text())
        reports[key_of(report)] = report
    store.write_text(json.dumps(dict(sorted(reports.items())), indent=1) + "\n")
    page = DOCS / "scale.md"
    page.write_text(draw(page.read_text(), reports))


def key_of(report: dict[str, Any]) -> str:
    """Return what a report replaces: its kind, sandbox and size."""
    kind, size = ("scale", report["sandboxes"]) if "sandboxes" in report else ("soak", report["episodes"])
    return f"{kind} {report['env']} {size}"


def draw(page: str, reports: dict[str, Any]) -> str:
    """Return the page with its figures replaced."""
    head, found, rest = page.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"docs/scale.md has no {BEGIN} … {END}")
    return f"{head}{BEGIN}\n\n{figures(reports)}\n\n{END}{tail}"


def figures(reports: dict[str, Any]) -> str:
    """Return the tables of the reports."""
    scale = [report for key, report in sorted(reports.items()) if key.startswith("scale ")]
    soak = [report for key, report in sorted(reports.items()) if key.startswith("soak ")]
    tables = [_table(_SCALE, scale)] if scale else []
    tables += [_table(_SOAK, soak)] if soak else []
    return "\n\n".join(tables) or "Nothing was measured yet."


def _sandbox(report: dict[str, Any]) -> str:
    return report["env"].rpartition(":")[2]


_SCALE = {
    "sandbox": _sandbox,
    "live at once": lambda r: str(r["sandboxes"]),
    "CPUs": lambda r: str(r["cpus"]),
    "all live, s": lambda r: f"{r['live_sec']:.1f}",
    "first prompt p99, s": lambda r: f"{r['first_prompt_p99_sec']:.2f}",
    "answer p99, ms": lambda r: f"{r['answer_p99_ms']:.0f}",
    "loop lag p99, ms": lambda r: f"{r['lag_p99_ms']:.1f}",
    "host, MiB each": lambda r: f"{r['host_mib']:.2f}",
    "below, MiB each": lambda r: f"{r['below_mib']:.2f}",
    "close, s": lambda r: f"{r['close_sec']:.1f}",
    "lost": lambda r: str(r["lost"]),
}
_SOAK = {
    "sandbox": _sandbox,
    "episodes": lambda r: str(r["episodes"]),
    "at once": lambda r: str(r["at_once"]),
    "minutes": lambda r: f"{r['wall_sec'] / 60:.1f}",
    "troubled": lambda r: str(sum(n for name, n in r["outcomes"].items() if not name.startswith("none: "))),
    "unaccounted": lambda r: str(r["unaccounted"]),
    "left": lambda r: ", ".join(r["left"]) or "none",
    "growth, KiB an episode": lambda r: f"{r['growth_kib']:.2f}",
}


def _table(columns: dict[str, Any], reports: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(report) for cell in columns.values()) + " |" for report in reports]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
