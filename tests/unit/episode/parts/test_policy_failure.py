"""The owner of a missing verdict: the table of :mod:`harbor_gym.episode.failures`, row by row."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harbor.models.trial.result import ExceptionInfo, StepResult, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult

from harbor_gym.episode.failures import SandboxFinding, lacks_verdict, policy_failure

SHARED, SEPARATE = SandboxFinding(is_shared=True), SandboxFinding(is_shared=False)
BROKEN = SandboxFinding(is_shared=True, breakage="its shell is gone")
FULL = SandboxFinding(is_shared=True, was_full=True)
HUNGRY = SandboxFinding(is_shared=True, oom_kills=2)
ODD = SandboxFinding(is_shared=True, is_well=True, has_verdict_untouched=True)
"""The verifier gives no verdict on what the policy left, and one in an untouched sandbox."""
MUTE = SandboxFinding(is_shared=True, is_well=True, has_verdict_untouched=False)
"""It gives one in neither."""
ODD_APART = SandboxFinding(is_shared=False, has_verdict_untouched=True)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def info(kind: str, message: str = "so it was") -> ExceptionInfo:
    return ExceptionInfo(exception_type=kind, exception_message=message, exception_traceback="", occurred_at=NOW)


def trial(error: ExceptionInfo | None, *, verifier_sec: float | None = 1.0, is_graded: bool = False) -> TrialResult:
    timing = None if verifier_sec is None else TimingInfo(started_at=NOW, finished_at=NOW + timedelta(0, verifier_sec))
    verdict = VerifierResult(rewards={"reward": 0.5}) if is_graded else None
    fields = {"step_results": None, "exception_info": error, "verifier": timing, "verifier_result": verdict}
    return cast(TrialResult, SimpleNamespace(**fields))


def later_step(error: ExceptionInfo, *, is_set_up: bool = False) -> TrialResult:
    """Return a trial whose first step was graded and whose second one was not."""
    began = TimingInfo(started_at=NOW) if is_set_up else None
    graded = StepResult(step_name="one", verifier_result=VerifierResult(rewards={"reward": 1.0}))
    steps = [graded, StepResult(step_name="two", exception_info=error, agent_execution=began)]
    return cast(TrialResult, SimpleNamespace(step_results=steps, exception_info=None))


ROWS: list[tuple[str, str, SandboxFinding, str | None]] = [
    ("BrokenByPolicyError", "3 are left", SHARED, "3 are left"),
    ("BrokenByPolicyError", "3 are left", SEPARATE, "3 are left"),
    ("VerifierTimeoutError", "after 3 s", SHARED, "ran out of time"),
    ("VerifierTimeoutError", "after 3 s", SEPARATE, None),
    ("RewardFileNotFoundError", "none", SHARED, None),
    ("RewardFileNotFoundError", "none", BROKEN, "its shell is gone"),
    ("RewardFileNotFoundError", "none", FULL, "left no room"),
    ("RewardFileNotFoundError", "none", HUNGRY, "ran out of memory"),
    ("RewardFileEmptyError", "none", SHARED, None),
    ("RewardFileEmptyError", "none", FULL, "left no room"),
    ("VerifierOutputParseError", "none", SHARED, None),
    ("AddTestsDirError", "failed", SHARED, None),
    ("AddTestsDirError", "failed", FULL, "left no room"),
    ("AddTestsDirError", "failed", SEPARATE, None),
    ("DownloadVerifierDirError", "failed", SHARED, None),
    ("DownloadVerifierDirError", "failed", BROKEN, "its shell is gone"),
    ("SandboxError", "no network", SHARED, None),
    ("SandboxError", "no network", BROKEN, "its shell is gone"),
    ("SandboxError", "can't upload a to /logs/artifacts: full", SEPARATE, "does not fit"),
    ("SandboxError", "can't run 'chmod'", SEPARATE, None),
    ("SandboxLostError", "gone", SHARED, None),
    ("SandboxLostError", "gone", FULL, None),
    ("SandboxMemoryError", "gone", HUNGRY, None),
    ("EnvironmentStartTimeoutError", "slow", SEPARATE, None),
    ("RewardFileNotFoundError", "none", ODD, "untouched"),
    ("RewardFileEmptyError", "none", ODD, "untouched"),
    ("VerifierOutputParseError", "nan", ODD, "untouched"),
    ("VerifierOutputParseError", "nan", ODD_APART, "untouched"),
    ("VerifierOutputParseError", "nan", MUTE, None),
    ("AddTestsDirError", "failed", ODD, "untouched"),
    ("AddTestsDirError", "failed", ODD_APART, None),
    ("DownloadVerifierDirError", "failed", ODD, "untouched"),
    ("DownloadVerifierDirError", "failed", ODD_APART, None),
    ("AgentTimeoutError", "the verifier's own is not recorded beside it", ODD, "untouched"),
    ("VerifierTimeoutError", "after 3 s", ODD, "ran out of time"),
    ("VerifierTimeoutError", "after 3 s", MUTE, "ran out of time"),
    ("SandboxLostError", "gone", ODD, None),
    ("SomethingElseError", "odd", ODD, None),
    ("SomethingElseError", "odd", SHARED, None),
    ("SomethingElseError", "odd", BROKEN, "its shell is gone"),
]


@pytest.mark.parametrize(("kind", "message", "finding", "expected"), ROWS)
def test_each_row_of_the_table_has_its_owner(
    kind: str, message: str, finding: SandboxFinding, expected: str | None
) -> None:
    failure = policy_failure(trial(info(kind, message)), finding)
    assert failure is None if expected is None else expected in (failure or "")


@pytest.mark.parametrize("finding", [SHARED, BROKEN, FULL, HUNGRY, SEPARATE])
def test_who_has_a_verdict_has_not_failed(finding: SandboxFinding) -> None:
    assert policy_failure(trial(info("AgentTimeoutError"), is_graded=True), finding) is None


@pytest.mark.parametrize(
    ("result", "finding"),
    [
        (trial(info("VerifierTimeoutError")), SHARED),
        (trial(info("RewardFileNotFoundError")), HUNGRY),
        (trial(info("VerifierOutputParseError")), ODD),
        (trial(info("VerifierOutputParseError")), ODD_APART),
        (later_step(info("HealthcheckError")), SHARED),
        (later_step(info("RuntimeError", "Step 'two' setup.sh exited with code 3: no room")), SEPARATE),
    ],
)
def test_what_the_task_may_have_caused_too_is_as_the_configuration_says(result: Any, finding: SandboxFinding) -> None:
    assert policy_failure(result, finding, "zero")
    assert policy_failure(result, finding, "infrastructure") is None


def test_a_later_step_that_began_was_set_up() -> None:
    assert policy_failure(later_step(info("HealthcheckError"), is_set_up=True), SHARED) is None
    assert policy_failure(later_step(info("OSError", "no file")), SHARED) is None


def test_a_time_out_that_the_agents_own_hides_is_seen_by_how_long_the_verifier_took() -> None:
    finding = SandboxFinding(is_shared=True, verifier_timeout_sec=5.0)
    assert policy_failure(trial(info("AgentTimeoutError"), verifier_sec=4.9), finding) is None
    assert "ran out of time" in (policy_failure(trial(info("AgentTimeoutError"), verifier_sec=5.01), finding) or "")
    assert policy_failure(trial(info("AgentTimeoutError"), verifier_sec=None), finding) is None


def test_a_sandbox_that_was_broken_without_an_error_has_its_finding() -> None:
    assert policy_failure(trial(None), BROKEN) == "its shell is gone"
    assert policy_failure(trial(None), FULL) is None


def test_a_sandbox_is_not_asked_about_where_it_does_not_answer() -> None:
    odd = trial(info("DownloadVerifierDirError"))
    assert lacks_verdict(odd, SandboxFinding(is_shared=True, is_well=True))
    assert not lacks_verdict(odd, SandboxFinding(is_shared=True, is_well=False))
    assert not lacks_verdict(trial(info("RewardFileEmptyError"), verifier_sec=None), ODD)
    assert not lacks_verdict(trial(info("VerifierTimeoutError")), ODD)
    assert not lacks_verdict(trial(info("RewardFileEmptyError")), BROKEN)


def test_what_a_sandbox_wrote_is_quoted_in_part() -> None:
    failure = policy_failure(trial(info("VerifierOutputParseError", "x" * 10_000_000)), ODD)
    assert 0 < len(failure or "") < 5000
