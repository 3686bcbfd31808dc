"""The benchmark of audits: that it runs, and its conclusions."""

import json

from tests.benchmarks.audit import AuditReport, AuditRow, format_audit
from tests.helpers.benchmarks import run_benchmark


def test_growth_is_a_power_of_the_tasks() -> None:
    rows = [AuditRow(10, 1.0, 1.0, 100.0, 1.0, 0), AuditRow(100, 10.0, 1.0, 100.0, 100.0, 0)]
    report = AuditReport(rows)
    assert report.exponents() == {"sec": 1.0, "again_sec": 0.0, "peak_mib": 0.0, "disk_mib": 2.0}
    assert format_audit(report).endswith("sec 1.00, again_sec 0.00, peak_mib 0.00, disk_mib 2.00")
    assert report.is_right
    assert not AuditReport([*rows, AuditRow(1000, 1.0, 1.0, 1.0, 1.0, 2)]).is_right


def test_an_audit_of_few_tasks_is_measured() -> None:
    report = json.loads(run_benchmark("audit", "--tasks", "40", "--no-play", "--json").stdout)
    assert [(row["tasks"], row["missed"]) for row in report["rows"]] == [(4, 0), (40, 0)]
