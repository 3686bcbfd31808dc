"""Draw the figures of docs/scale.md from docs/figures/scale.json: reports of ``make bench`` as they were printed.

make bench ARGS="scale --sandboxes 1000 --json" > scale.json
make bench ARGS="soak --episodes 20000 --json" > soak.json
python .ci/docs/scale_page.py scale.json soak.json      # adds or replaces them, and draws the page
python .ci/docs/scale_page.py                           # draws the page from what is there
"""

import sys
from typing import Any

from pages import DOCS, add_reports, mark, replace_section, table

BEGIN = mark("scale_page.py")


def main(files: list[str]) -> None:
    """Add the reports in ``files``, and draw the page."""
    reports = add_reports(DOCS / "figures" / "scale.json", files, key_of)
    page = DOCS / "scale.md"
    page.write_text(draw(page.read_text(), reports))


def key_of(report: dict[str, Any]) -> str:
    """Return the key of a report, which replaces one with the same: its kind, sandbox and size."""
    kind, size = ("scale", report["sandboxes"]) if "sandboxes" in report else ("soak", report["episodes"])
    return f"{kind} {report['env']} {size}"


def draw(page: str, reports: dict[str, Any]) -> str:
    """Return the page with its figures replaced."""
    return replace_section(page, BEGIN, figures(reports))


def figures(reports: dict[str, Any]) -> list[str]:
    """Return a table of each kind of report that there is."""
    tables: list[str] = []
    for kind, columns in (("scale ", _SCALE), ("soak ", _SOAK)):
        found = [report for key, report in sorted(reports.items()) if key.startswith(kind)]
        lines = [[cell(report) for cell in columns.values()] for report in found]
        tables += [table(list(columns), lines)] if found else []
    return tables


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


if __name__ == "__main__":
    main(sys.argv[1:])
