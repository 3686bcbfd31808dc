"""The page of an audit: every number and every finding is in it, as text."""

import re
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.report import audit
from harbor_gym.report.audit import write_audit_page
from harbor_gym.tasks.receipts import EpisodeGrades, Evidence, Finding, Receipt, Severity

HARM = "</script><script>alert(1)</script>\x1b[31m"


def receipt(task: str, *findings: Finding, source: str = "first") -> Receipt:
    more: dict[str, Any] = {"versions": {}, "sandbox": "local", "settings": {}, "judged_at": "", "durations": {}}
    return Receipt(
        task=task,
        path=f"{source}/{task}",
        source=source,
        digest=f"sha256:{task}",
        verdict="ok",
        findings=findings,
        **more,
    )


def finding(kind: str, severity: Severity = Severity.ERROR, **evidence: Any) -> Finding:
    return Finding(
        kind=kind, severity=severity, message=f"about {kind}", remedy="repair it", evidence=(Evidence(**evidence),)
    )


def text_of(page: Path) -> str:
    body = page.read_text(encoding="utf-8").partition("<body>")[2]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_rates_of_episodes_are_shown_with_their_counts(tmp_path: Path) -> None:
    grades = EpisodeGrades.of(sampled=5, unreplayed=1, flaky=1, paid=2, forged=1)
    receipts = [
        receipt("one", finding("episodes/flaky")).model_copy(update={"episodes": grades}),
        receipt("two").model_copy(
            update={"episodes": EpisodeGrades.of(sampled=4, unreplayed=4, flaky=0, paid=0, forged=0)}
        ),
        receipt("three"),
    ]
    write_audit_page(receipts, tmp_path / "audit.html")
    text = text_of(tmp_path / "audit.html")
    shares = "forge rate 50.0% (1 of 2 paid episodes) flake rate 25.0% (1 of 4 episodes) not replayed 5 of 9"
    assert shares in text
    assert "· flake rate 25.0% (1 of 4 episodes) · not replayed 1 of 5" in text
    assert receipts[1].episodes is not None
    assert receipts[1].episodes.shares["forge rate"] == "unknown (0 paid episodes)"


def test_classes_by_source_kinds_and_evidence_are_shown(tmp_path: Path) -> None:
    receipts = [
        receipt("one", finding("leak/tests", file="environment/x", line=3), finding("leak/solution")),
        receipt("two", finding("leak/tests"), source="second"),
        receipt("three", finding("hygiene/unpinned", Severity.WARNING), source="second"),
        receipt("four", finding("episodes/tests-read", episode="run/e1.json", turn=4, text="cat /tests/a", reward=1.0)),
        receipt("five", finding("episodes/never-paid", Severity.NOTE)),
        receipt("six"),
    ]
    (tmp_path / "sales").mkdir()
    write_audit_page(receipts, tmp_path / "sales" / "audit.html")
    text = text_of(tmp_path / "sales" / "audit.html")
    assert "sales dark tasks 6 clean 2 sandbox local" in text
    assert "source tasks clean episodes hygiene leak first 4 2 1 1 1 second 2 0 1 1 Kinds" in text
    assert "leak/tests error 2 33.3%" in text
    assert "environment/x:3" in text
    assert "run/e1.json, turn 4 reward 1 cat /tests/a" in text
    assert (
        text.index("leak/tests about") < text.index("hygiene/unpinned about") < text.index("episodes/never-paid about")
    )


def test_what_a_policy_wrote_is_text(tmp_path: Path) -> None:
    write_audit_page([receipt(HARM, finding("leak/tests", text=HARM), source=HARM)], tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert "\x1b" not in page
    assert page.count("<script>") == 1


def test_no_task_and_too_many_have_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_audit_page([], tmp_path / "audit.html")
    assert "tasks 0 clean 0" in text_of(tmp_path / "audit.html")
    monkeypatch.setattr(audit, "MAX_TASKS", 1)
    write_audit_page([receipt(name, finding("leak/tests")) for name in ("a", "b", "c")], tmp_path / "audit.html")
    assert "2 more tasks with findings are in audit.csv" in text_of(tmp_path / "audit.html")
