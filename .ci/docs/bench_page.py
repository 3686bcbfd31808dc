"""Draw the figures of docs/benchmarks.md from docs/bench.json: reports of ``harbor-gym bench all`` as printed.

harbor-gym bench all --env local > local.json
python .ci/docs/bench_page.py local.json                # adds or replaces it, and draws the page
python .ci/docs/bench_page.py                           # draws the page from what is there
"""

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- figures: drawn by .ci/docs/bench_page.py -->", "<!-- end of figures -->"


def main(files: list[str]) -> None:
    """Add the reports in ``files``, by their sandbox, and draw the page."""
    store = DOCS / "bench.json"
    reports: dict[str, Any] = json.loads(store.read_text())
    for file in files:
        report = json.loads(Path(file).read_text())
        reports[report["env"]] = report
    store.write_text(json.dumps(dict(sorted(reports.items())), indent=1) + "\n")
    page = DOCS / "benchmarks.md"
    page.write_text(draw(page.read_text(), reports))


def draw(page: str, reports: dict[str, Any]) -> str:
    """Return the page with its figures replaced."""
    head, found, rest = page.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"docs/benchmarks.md has no {BEGIN} … {END}")
    sections = "\n\n".join(section(report) for _, report in sorted(reports.items()))
    return f"{head}{BEGIN}\n\n{sections or 'Nothing was measured yet.'}\n\n{END}{tail}"


def section(report: dict[str, Any]) -> str:
    """Return one sandbox's figures, under the description of the machine."""
    parts = (_machine(report), _steps(report["step"]), _resets(report["reset"]), _rest(report))
    return f"### `{report['env'].rpartition(':')[2]}`\n\n" + "\n\n".join(parts)


def _machine(report: dict[str, Any]) -> str:
    machine, load = report["machine"], report["load"]
    return (
        f"{machine['processor']}, {machine['cpus']} processors, {machine['memory_gib']:g} GiB; {machine['system']}, "
        f"kernel {machine['kernel']}; Python {machine['python']}, harbor_gym {machine['harbor_gym']}, "
        f"Harbor {machine['harbor']}. "
        f"Measured on {report['day']}, load {load['before']:g} before and {load['after']:g} after (one process that "
        "computes without a pause is a load of 1; the benchmark itself counts)."
    )


def _steps(report: dict[str, Any]) -> str:
    rows: dict[str, dict[str, float]] = {}
    for row in report["rows"]:
        rows.setdefault(row["row"], {})[row["implementation"]] = row["median_ms"]
    ways = list(dict.fromkeys(row["implementation"] for row in report["rows"]))
    titles = {"harbor": "Harbor's `TmuxSession`"}
    lines = [[name, *(f"{found[way]:.0f}" if way in found else "" for way in ways)] for name, found in rows.items()]
    return _table(["a step, median ms", *(titles.get(way, way) for way in ways)], lines)


def _resets(report: dict[str, Any]) -> str:
    lines = [
        [row["way"], str(row["at_once"]), *(f"{row[name]:.0f}" for name in ("ready_ms", "all_ready_ms", "close_ms"))]
        for row in report["rows"]
    ]
    return _table(["a sandbox, median ms", "at once", "ready", "all ready", "close"], lines)


def _rest(report: dict[str, Any]) -> str:
    episode, many = report["episode"]["rows"][0], report["concurrency"]
    vector, gateway = report["vector"], {row["endpoint"]: row for row in report["gateway"]["rows"]}
    episodes = f"scripted episodes of five steps with their verifier, {episode['at_once']} at once"
    lag = f"{many['lost']} lost, event-loop lag p99 {many['lag_p99_ms']:.1f} ms"
    lines = [
        [episodes, f"{episode['per_minute']:.0f} a minute"],
        [f"{many['terminals']} terminals at once, {many['steps']} steps", lag],
        [f"`sleep 0.3` in {vector['num_envs']} sub-environments", f"{vector['sleep_ratio']:g} times one's"],
    ]
    for name, row in gateway.items():
        over = f"median {row['median_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms"
        lines.append([f"a call, {name}, over the sampler's own time", over])
    return _table(["what", "measured"], lines)


def _table(titles: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *lines))


if __name__ == "__main__":
    main(sys.argv[1:])
