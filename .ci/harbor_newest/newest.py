"""Install every extra's newest releases, each extra in an environment of its own, run its tests, and write a table.

`pyproject.toml` bounds some packages. Here those bounds are left out: the table tells which of them could be wider.

    newest.py [EXTRA …]     the others keep their rows
"""

import datetime
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/harbor-versions.md"
FOLDER = ROOT / "build/newest"
BEGIN, END = "<!-- table: .ci/harbor_newest/newest.py -->", "<!-- end of the newest -->"
HEAD = ("extra", "newest releases", "Harbor", "tests", "verdict", "asked on")
ADAPTERS = "tests/integration/adapters"
SAME = "tests/contract/test_same_episode.py"


@dataclass(frozen=True)
class Suite:
    """The tests of an extra."""

    paths: tuple[str, ...]
    """Files and folders; those of a pattern."""

    marks: str = "not slow"
    """Which tests of them."""

    beside: tuple[str, ...] = ()
    """Other extras that the tests need."""

    group: str = ""
    """A dependency group that they need."""

    python: str = "3.12"
    """The Python to resolve for."""


SUITES: Mapping[str, Suite] = {
    "none": Suite(
        ("tests/unit/runtime", "tests/unit/episode", "tests/unit/gateway", "tests/contract/test_outcomes.py")
    ),
    "tinker": Suite((f"{ADAPTERS}/test_tinker_*.py", "tests/unit/adapters/test_tinker_*.py", SAME), beside=("server",)),
    "server": Suite(("tests/integration/training/test_embedded_policy.py",), "", ("tinker",), "engine"),
    "trl": Suite((f"{ADAPTERS}/trl", "tests/unit/adapters/test_trl_*.py"), beside=("tinker",)),
    "skyrl": Suite(("tests/unit/skyrl", f"{ADAPTERS}/test_skyrl_server.py"), beside=("tinker",)),
    "openenv": Suite(("tests/unit/openenv", f"{ADAPTERS}/test_openenv_*.py"), beside=("tinker",)),
    "verifiers": Suite((SAME, f"{ADAPTERS}/verifiers"), "verifiers and not slow"),
    "verl": Suite((SAME, f"{ADAPTERS}/verl"), "verl"),
    "ray": Suite(("tests/unit/cluster", "tests/integration/cluster")),
    "frame": Suite(("tests/unit/report", "tests/integration/report"), beside=("plot", "render", "otel", "trackers")),
    "nemo-gym": Suite((SAME, "tests/integration/nemo_gym"), "nemo_gym", python="3.13.14"),
}
"""Extra → its tests; none is the package alone. plot, render, otel and trackers are tested with frame."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an extra's newest releases."""

    releases: Mapping[str, str]
    """Package of the extra → the release that the resolver chose."""

    newest: Mapping[str, str]
    """Package of the extra → its newest release."""

    harbor: str = ""
    """The Harbor beside them."""

    counts: Mapping[str, int] | None = None
    """Tests by outcome: passed, failed, skipped. None where none ran."""

    trouble: str = ""
    """The first fault, in a line."""


def unbounded(requirement: str) -> str:
    """Return a requirement without its upper bounds; a pinned version may be newer."""
    parsed = Requirement(requirement)
    parts = [(part.operator.replace("==", ">="), part.version) for part in parsed.specifier]
    lower = [f"{operator}{version}" for operator, version in parts if operator in (">=", ">", "!=")]
    marker = f"; {parsed.marker}" if parsed.marker else ""
    extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    return f"{parsed.name}{extras}{','.join(sorted(lower))}{marker}"


def row(extra: str, outcome: Outcome, requirements: Sequence[str], date: str) -> list[str]:
    """Return an extra's row of the table.

    Args:
        extra: Its name.
        outcome: Its outcome.
        requirements: Its requirements in pyproject.toml.
        date: When that was.
    """
    allowed = {parsed.name: parsed.specifier for parsed in map(Requirement, requirements)}
    beyond = [f"{name} {it}" for name, it in outcome.releases.items() if not allowed[name].contains(it)]
    held = [
        f"{name} {outcome.newest[name]}"
        for name, release in outcome.releases.items()
        if outcome.newest.get(name, release) != release
    ]
    counts = outcome.counts
    shown = "none ran" if counts is None else ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    if counts is None or counts.get("failed") or not counts.get("passed"):
        verdict = f"broken by {', '.join(beyond)}: " if beyond else "broken: "
        verdict += outcome.trouble or "no test passed"
    else:
        verdict = f"works; the bound on {', '.join(beyond)} could go" if beyond else "works"
    if held:
        verdict += f"; not installable beside the rest: {', '.join(held)}"
    releases = ", ".join(f"{name} {release}" for name, release in outcome.releases.items()) or "none"
    cells = [f"`{extra}`" if extra != "none" else extra, releases, outcome.harbor or "none", shown, verdict, date]
    return [cell.replace("|", "\\|") for cell in cells]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of these rows."""
    lines = [list(HEAD), ["---"] * len(HEAD), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the rows that a page has, by extra."""
    _, _, rest = text.partition(BEGIN)
    lines = [line for line in rest.partition(END)[0].splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0].strip("`"): row for row in cells}


def counts_of(report: Path) -> tuple[dict[str, int], str]:
    """Return the tests of a JUnit file by outcome, and the first failure in a line."""
    counts, first = {"passed": 0, "failed": 0, "skipped": 0}, ""
    for case in ET.parse(report).iter("testcase"):
        failure = next((found for name in ("failure", "error") if (found := case.find(name)) is not None), None)
        kind = "failed" if failure is not None else "skipped" if case.find("skipped") is not None else "passed"
        counts[kind] += 1
        if failure is not None and not first:
            shown = re.findall(r"^E +(.+)", failure.text or "", re.MULTILINE)
            said = [*shown, *(failure.get("message") or "no message").strip().splitlines()]
            first = f"{case.get('name')}: {said[0][:160]}"
    return counts, first


def project() -> dict[str, Any]:
    """Return the package's table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(extra: str) -> list[str]:
    """Return an extra's requirements in pyproject.toml."""
    return project()["optional-dependencies"].get(extra, [])


def pins_of(text: str) -> dict[str, str]:
    """Return the pins of a requirements file: package → release."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))


def compile_pins(lines: Sequence[str], pins: Path, python: str, *flags: str) -> str:
    """Resolve requirements into a file; return why that can't be done, or nothing."""
    source = pins.with_suffix(".in")
    source.write_text("\n".join(lines), encoding="utf-8")
    command = [ROOT / ".venv/bin/uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", source, *flags]
    command += ["--python-version", python, "--output-file", pins, "--upgrade"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else " ".join(said[:3])[:300]


def tried(extra: str, suite: Suite) -> Outcome:
    """Install an extra's newest releases and run its tests."""
    own = required(extra)
    names = [Requirement(text).name for text in own]
    FOLDER.mkdir(parents=True, exist_ok=True)
    alone = FOLDER / f"{extra}.alone.txt"
    compile_pins(names, alone, suite.python, "--no-deps")
    newest = {name: release for name, release in pins_of(alone.read_text(encoding="utf-8")).items() if name in names}
    name = extra.replace("-", "_")
    pins = FOLDER / f"{name}.txt"
    wanted = [*own, *project()["dependencies"], *(text for other in suite.beside for text in required(other))]
    groups = [
        flag for group in ("test", "contract", suite.group) if group for flag in ("--group", f"pyproject.toml:{group}")
    ]
    overrides = FOLDER / "overrides.txt"
    # The packages that declare one another's versions, without these.
    ours = (ROOT / ".requirements/overrides.txt").read_text(encoding="utf-8")
    overrides.write_text(re.sub(r"[=>]=[\w.]+$", "", ours, flags=re.MULTILINE), encoding="utf-8")
    trouble = compile_pins(list(map(unbounded, wanted)), pins, suite.python, *groups, "--overrides", str(overrides))
    if trouble:
        return Outcome({}, newest, trouble=trouble)
    chosen = pins_of(pins.read_text(encoding="utf-8"))
    releases = {name: chosen[name] for name in names if name in chosen}
    environ = {**os.environ, "HARBOR_GYM_PINS": str(FOLDER), "HARBOR_GYM_ENVIRONMENTS": str(FOLDER)}
    made = subprocess.run([ROOT / ".ci/environment.sh", name], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    outcome = Outcome(releases, newest, chosen["harbor"])
    if made.returncode:
        return replace(outcome, trouble="its packages can't be installed, see above")
    report = FOLDER / f"{name}.xml"
    report.unlink(missing_ok=True)
    paths = [str(path.relative_to(ROOT)) for pattern in suite.paths for path in sorted(ROOT.glob(pattern))]
    command = [ROOT / made.stdout.strip() / "bin/python", "-m", "pytest", "-n", "2", "--max-worker-restart", "0"]
    command += ["-m", suite.marks, "--junitxml", report, *paths]
    environ = {name: value for name, value in os.environ.items() if name != "HARBOR_GYM_REQUIRE"}
    subprocess.run(command, cwd=ROOT, env=environ, check=False)
    if not report.exists():
        return replace(outcome, trouble="its tests can't be collected, see above")
    counts, first = counts_of(report)
    return replace(outcome, counts=counts, trouble=first)


def main(extras: Sequence[str]) -> None:
    """Try these extras, or all, and write the table after each."""
    if unknown := set(extras) - set(SUITES):
        sys.exit(f"no extra is called {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    for extra in extras or SUITES:
        date = str(datetime.datetime.now(datetime.UTC).date())
        outcome = tried(extra, SUITES[extra])
        text = PAGE.read_text(encoding="utf-8")
        rows = {**rows_of(text), extra: row(extra, outcome, required(extra), date)}
        before, _, after = text.partition(BEGIN)
        drawn = table([rows[name] for name in SUITES if name in rows])
        PAGE.write_text(f"{before}{BEGIN}\n{drawn}\n{END}{after.partition(END)[2]}", encoding="utf-8")
        print(" | ".join(rows[extra]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
