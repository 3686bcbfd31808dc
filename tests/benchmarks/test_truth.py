"""The truth bench: how it judges, and that the terminal stands before it on the sessions that find most."""

from pathlib import Path

import pytest

from tests.benchmarks.truth import measure as truth
from tests.benchmarks.truth.measure import TruthReport, Verdict, bench_truth, format_truth
from tests.benchmarks.truth.sessions import Session, TruthStep, make_sessions
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.terminal_environments import start_local


def test_the_sessions_are_a_few_hundred_steps_and_have_names_of_their_own() -> None:
    sessions = make_sessions()
    assert sum(len(session.steps) for session in sessions) > 250
    assert len({session.name for session in sessions}) == len(sessions)
    assert set(make_sessions(reduced=True)) < set(sessions)


def test_rates_are_shares_of_each_transports_steps() -> None:
    kinds = ["right", "right", "early", "late"]
    verdicts = tuple(Verdict("portable", "s", "k\n", kind) for kind in kinds)
    report = TruthReport("local", (*verdicts, Verdict("persistent", "s", "k\n", "right")), ("portable s: 1 lost",))
    assert (report.rate("early", "portable"), report.rate("early", "persistent"), report.rate("late")) == (0.25, 0, 0.2)
    assert format_truth(report).splitlines() == [
        "transport   steps  false early  false late  other name",
        "persistent      1       0.00 %      0.00 %      0.00 %",
        "portable        4      25.00 %     25.00 %      0.00 %",
        "lines lost, doubled or out of order: 1",
        "  portable s: 1 lost",
        "  1 x  early  portable  s: 'k\\n'",
        "  1 x  late   portable  s: 'k\\n'",
    ]


@pytest.mark.local
@pytest.mark.parametrize("part", [0, 1])
async def test_no_return_is_early_or_late(tmp_path: Path, nothing_left: None, part: int) -> None:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    report = await bench_truth(sandbox, make_sessions(reduced=True)[part::2], at_once=4)
    await sandbox.stop(delete=True)
    assert not report.unavailable
    assert [item for item in report.verdicts if item.kind in ("early", "late")] == []
    assert report.wrong_lines == ()


@pytest.mark.local
async def test_a_return_that_is_early_or_late_is_found(tmp_path: Path, nothing_left: None) -> None:
    """The judge is judged: a wrong end of a wait, and lines that nobody printed."""
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    busy = TruthStep("true\n", "busy")
    asked = TruthStep("echo L000001; sleep 4\n", "prompt", deadline_sec=3.0, lines=("L000001", "L000002"))
    report = await bench_truth(sandbox, [Session("wrong", (busy, asked))], at_once=4)
    await sandbox.stop(delete=True)
    found = {(item.keys, item.kind) for item in report.verdicts}
    assert {("true\n", "early"), ("echo L000001; sleep 4\n", "late")} <= found
    assert len(report.wrong_lines) == len(truth.our_transports())
