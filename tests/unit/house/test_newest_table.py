"""The table of every extra's newest releases, which `make newest` draws."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

newest: dict[str, Any] = runpy.run_path(str(ROOT / ".ci/harbor_newest/newest.py"))
Outcome, row, table, rows_of = (newest[name] for name in ("Outcome", "row", "table", "rows_of"))

REQUIRED = ["openenv>=0.10,<0.11", "fastmcp<4"]


@pytest.mark.parametrize(
    ("releases", "counts", "trouble", "verdict"),
    [
        ({"openenv": "0.10.2", "fastmcp": "3.9"}, {"passed": 3, "failed": 0, "skipped": 1}, "", "works"),
        (
            {"openenv": "0.10.2", "fastmcp": "4.2"},
            {"passed": 3, "failed": 0, "skipped": 0},
            "",
            "works; the bound on fastmcp 4.2 could go",
        ),
        (
            {"openenv": "0.11.0", "fastmcp": "4.2"},
            {"passed": 3, "failed": 1, "skipped": 0},
            "test_a: boom",
            "broken by openenv 0.11.0, fastmcp 4.2: test_a: boom",
        ),
        ({"openenv": "0.10.2"}, {"passed": 3, "failed": 1, "skipped": 0}, "test_a: boom", "broken: test_a: boom"),
        ({"openenv": "0.10.2"}, {"passed": 0, "failed": 0, "skipped": 9}, "", "broken: no test passed"),
        ({}, None, "No solution found", "broken: No solution found"),
    ],
)
def test_a_verdict_names_the_releases_beyond_our_bounds(
    releases: dict[str, str], counts: dict[str, int] | None, trouble: str, verdict: str
) -> None:
    outcome = Outcome(releases, releases, "0.26.0", counts, trouble)
    assert row("openenv", outcome, REQUIRED, "2026-01-01")[4] == verdict


def test_a_release_that_the_resolver_did_not_choose_is_named() -> None:
    outcome = Outcome({"openenv": "0.10.0"}, {"openenv": "0.12.0"}, "0.26.0", {"passed": 1}, "")
    assert (
        row("openenv", outcome, REQUIRED, "2026-01-01")[4] == "works; not installable beside the rest: openenv 0.12.0"
    )


def test_rows_that_are_not_asked_again_stay_as_they_are() -> None:
    rows = [["`trl`", "trl 1.0", "0.26.0", "1 passed", "broken: a \\| b", "2026-01-01"], ["none", *"abcde"]]
    page = f"before\n{newest['BEGIN']}\n{table(rows)}\n{newest['END']}\n| after | it |\n| --- | --- |\n| x | y |\n"
    assert rows_of(page) == {"trl": rows[0], "none": rows[1]}


def test_tests_are_counted_by_outcome(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase>'
        '<testcase name="c"><failure message="E1&#10;more"/></testcase>'
        '<testcase name="d"><error message="E2"/></testcase></testsuite></testsuites>',
        encoding="utf-8",
    )
    assert newest["counts_of"](report) == ({"passed": 1, "failed": 2, "skipped": 1}, "c: E1")


@pytest.mark.parametrize(
    ("bounded", "free"),
    [
        ("trl>=1.16,<1.17", "trl>=1.16"),
        ("skyrl==0.4.0", "skyrl>=0.4.0"),
        ("nemo-gym>=0.7,<0.8; python_full_version >= '3.13.14'", 'nemo-gym>=0.7; python_full_version >= "3.13.14"'),
    ],
)
def test_upper_bounds_are_left_out(bounded: str, free: str) -> None:
    assert newest["unbounded"](bounded) == free


def test_every_extra_is_tried_or_tried_beside_another() -> None:
    suites = newest["SUITES"]
    beside = {other for suite in suites.values() for other in suite.beside}
    assert set(newest["project"]()["optional-dependencies"]) == (set(suites) - {"none"}) | beside
