"""The truth bench: how it judges, and that the terminal stands before it on the sessions that find most."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harbor_gym.terminal import Screen
from tests.benchmarks.truth import measure as truth
from tests.benchmarks.truth.measure import (
    Taken,
    TruthReport,
    TruthRun,
    Verdict,
    as_observed,
    format_taken,
    format_truth,
)
from tests.benchmarks.truth.sessions import Session, TruthStep, make_sessions
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.terminal_environments import LocalSandbox, start_local


@pytest.fixture
async def sandbox(tmp_path: Path, nothing_left: None) -> AsyncIterator[LocalSandbox]:
    require_engine("local")
    started = await start_local(tmp_path / "environment")
    yield started
    await started.stop(delete=True)


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


def test_a_session_is_a_row_of_a_table_that_grows() -> None:
    steps = (Verdict("portable", "fzf", "7", "late", "'> '"), Verdict("portable", "fzf", "\n", "right"))
    assert format_taken(Taken("portable", "fzf", steps, ("portable fzf: 1 lost",)), 3, 88).splitlines() == [
        "3/88     portable    2 steps   fzf                          1 late",
        "  late  portable  fzf: '7' '> '",
        "  portable fzf: 1 lost",
    ]


def test_a_later_screen_is_compared_as_an_observation_shows_it() -> None:
    """Else a return whose output the witness reads a moment later is early wherever a program drew lines."""
    screen = Screen(80, 4, ("\x1b[1mKi\x0ell\x0fed\x1b[0m  ", "$ ", "", ""), 1, 2, True, False)
    assert as_observed(screen) == ["Killed", "$"]


@pytest.mark.local
async def test_no_return_is_early_or_late(sandbox: LocalSandbox) -> None:
    sessions = make_sessions(reduced=True)
    # They wait nearly all the time: it takes as long as the longest of them.
    report = await TruthRun(sessions, at_once=len(sessions) * len(truth.TRANSPORTS)).take(sandbox)
    assert not report.unavailable
    assert [item for item in report.verdicts if item.kind == "early"] == []
    assert report.wrong_lines == ()
    # On a busy machine a program may not get the processor before the deadline; by itself it does.
    late = {item.session for item in report.verdicts if item.kind == "late"}
    again = await TruthRun([session for session in sessions if session.name in late], at_once=1).take(sandbox)
    assert [item for item in again.verdicts if item.kind in ("early", "late")] == []


@pytest.mark.local
async def test_a_return_that_is_early_or_late_is_found(sandbox: LocalSandbox) -> None:
    """The judge is judged: a wrong end of a wait, and lines that nobody printed."""
    busy = TruthStep("true\n", "busy")
    asked = TruthStep("echo L000001; sleep 4\n", "prompt", deadline_sec=3.0, lines=("L000001", "L000002"))
    report = await TruthRun([Session("wrong", (busy, asked))]).take(sandbox)
    found = {(item.keys, item.kind) for item in report.verdicts}
    assert {("true\n", "early"), ("echo L000001; sleep 4\n", "late")} <= found
    assert len(report.wrong_lines) == len(truth.TRANSPORTS)
    assert not report.is_right


@pytest.mark.local
async def test_a_run_ends_early_with_what_it_has(sandbox: LocalSandbox) -> None:
    sessions = [Session(name, (TruthStep("true\n", "prompt"),)) for name in ("one", "two")]
    over = asyncio.Event()
    run = TruthRun(sessions, at_once=1, on_taken=lambda _taken, _done, _all: over.set())
    taking = asyncio.create_task(run.take(sandbox))
    await over.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    rest = ("persistent one", "portable two", "persistent two")
    assert (len(run.report.verdicts), run.report.left_out) == (1, rest)
    assert (await TruthRun(sessions[1:], limit_sec=0).take(sandbox)).left_out == rest[1:]


@pytest.mark.local
def test_ctrl_c_prints_the_report() -> None:
    require_engine("local")
    words = [sys.executable, "-m", "tests.benchmarks", "truth", "--at-once", "1", "--session", "exec bash"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "exec bash" in line)  # lines before it tell of an image
        process.send_signal(signal.SIGINT)
        printed, more = process.communicate()
    assert line == "1/2      portable    5 steps   exec bash                    right\n"
    assert (process.returncode, more) == (130, "interrupted\n")
    assert printed.endswith("not taken to their end (1): persistent exec bash\n")
