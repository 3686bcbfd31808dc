"""Draw the figures of docs/benchmarks.md from docs/figures/bench.json: reports of ``make bench ARGS=all`` as printed.

make bench ARGS="all --env local" > local.json
python .ci/docs/bench_page.py local.json                # adds or replaces it, and draws the page
python .ci/docs/bench_page.py                           # draws the page from what is there
"""

import sys
from typing import Any

from pages import DOCS, add_reports, mark, replace_section, table

BEGIN = mark("bench_page.py")


def main(files: list[str]) -> None:
    """Add the reports in ``files``, by their sandbox, and draw the page."""
    reports = add_reports(DOCS / "figures" / "bench.json", files, lambda report: report["env"])
    page = DOCS / "benchmarks.md"
    page.write_text(draw(page.read_text(), reports))


def draw(page: str, reports: dict[str, Any]) -> str:
    """Return the page with its figures replaced."""
    return replace_section(page, BEGIN, [section(report) for _, report in sorted(reports.items())])


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
    return table(["a step, median ms", *(titles.get(way, way) for way in ways)], lines)


def _resets(report: dict[str, Any]) -> str:
    lines = [
        [row["way"], str(row["at_once"]), *(f"{row[name]:.0f}" for name in ("ready_ms", "all_ready_ms", "close_ms"))]
        for row in report["rows"]
    ]
    return table(["a sandbox, median ms", "at once", "ready", "all ready", "close"], lines)


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
    return table(["what", "measured"], lines)


if __name__ == "__main__":
    main(sys.argv[1:])
