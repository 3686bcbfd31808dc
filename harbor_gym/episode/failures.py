"""Map Harbor's failures to this package's errors. No other module does.

:func:`policy_failure` decides whether a missing verdict is the policy's failure; :mod:`harbor_gym.outcomes` has the
table.
"""

import math
from dataclasses import dataclass

from harbor.models.trial.result import ExceptionInfo, StepResult, TrialResult

from harbor_gym import errors
from harbor_gym._runtime.harbor_versions import (
    NON_ZERO_EXIT,
    REFUSED_AGENT,
    is_end_of_agent,
    is_exit_of_agent,
    recorded_exceptions,
)
from harbor_gym.config import AmbiguousFailures
from harbor_gym.episode.grading.cleanup import BrokenByPolicyError
from harbor_gym.episode.throttling import is_throttled, retry_after_sec
from harbor_gym.errors import (
    AgentFailedError,
    HarborGymError,
    SandboxLostError,
    SandboxMemoryError,
    SandboxStartError,
    SandboxThrottledError,
    SandboxTimeoutError,
    VerifierError,
    VerifierOutOfMemoryError,
)

_DIAGNOSTICS_LINES, _MAX_TEXT = 30, 4000

_GONE = {"SandboxLostError", "SandboxMemoryError", "SandboxThrottledError", "EnvironmentStartTimeoutError"}
"""Exceptions of a sandbox that no policy can cause; a sandbox that only seems lost has a finding."""

_SET_UP_FAILED = "setup.sh exited with code"
"""The text of Harbor's RuntimeError for a step's script."""

_START_TIMEOUT = "EnvironmentStartTimeoutError"

VERIFIER_HINTS = {
    "RewardFileNotFoundError": "tests/test.sh must write /logs/verifier/reward.txt or reward.json, also when it fails",
    "RewardFileEmptyError": "tests/test.sh left an empty reward file",
    "VerifierOutputParseError": "the reward must be one finite number, or a JSON object of such",
    "VerifierTimeoutError": "raise [verifier] timeout_sec in task.toml if the tests need longer",
    "AddTestsDirError": "the tests could not be copied into the sandbox",
    "DownloadVerifierDirError": "the verifier's files could not be read back from the sandbox",
}
"""Harbor's name of a verifier's failure → what to do."""

_ODD_VERDICTS = ("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError")


def start_failure(result: TrialResult, cause: BaseException | None = None) -> HarborGymError:
    """Return the error for a trial that ended before the agent's phase began.

    Args:
        result: The finished trial.
        cause: The exception that the sandbox's start raised, if any.
    """
    info = result.exception_info or _step_cause(result)
    if info is None:
        return SandboxStartError(f"trial of task {result.task_name!r} ended before the agent could run, with no error")
    if (own := _own_error(info, cause)) is not None:
        return own
    if result.agent_setup is not None:
        return AgentFailedError(f"the agent of task {result.task_name!r} could not be set up: {_describe(info)}")
    notes = getattr(cause, "__notes__", [])
    message = f"the sandbox of task {result.task_name!r} did not start: {': '.join([_describe(info), *notes])}"
    if cause is not None and is_throttled(cause):
        return SandboxThrottledError(message, retry_after_sec(cause))
    kind = SandboxTimeoutError if info.exception_type == _START_TIMEOUT else SandboxStartError
    return kind(message)


def step_failure(result: TrialResult) -> HarborGymError:
    """Return the error for a multi-step trial that ended because a later step could not be set up.

    Args:
        result: The finished trial.
    """
    info = _step_cause(result) or result.exception_info
    if info is not None and (own := _own_error(info)) is not None:
        return own
    step = result.step_results[-1].step_name if result.step_results else "?"
    cause = _describe(info) if info is not None else "no error was recorded"
    return SandboxStartError(f"step {step!r} of task {result.task_name!r} could not be set up: {cause}")


def grading_failure(result: TrialResult, info: ExceptionInfo | None, oom_kills: int = 0) -> HarborGymError:
    """Return the error for a trial whose verifier gave no verdict.

    Args:
        result: The trial.
        info: The cause that Harbor recorded, if any.
        oom_kills: Processes that the sandbox's memory limit killed while it graded.
    """
    if info is None:
        return VerifierError(f"task {result.task_name!r} ended without a verdict and without an error")
    own = _own_error(info)
    if isinstance(own, SandboxMemoryError):
        return VerifierOutOfMemoryError(f"the verifier of task {result.task_name!r} gave no verdict: {own}")
    if own is not None:
        return own
    hint = VERIFIER_HINTS.get(info.exception_type)
    message = f"the verifier of task {result.task_name!r} gave no verdict: {_describe(info)}"
    if oom_kills:
        ran_out = f"its sandbox's memory limit killed {oom_kills} of its processes: raise [environment] memory_mb"
        return VerifierOutOfMemoryError(f"{message} ({ran_out})")
    return VerifierError(f"{message} ({hint})" if hint else message)


def denied_verdict(
    result: TrialResult, *, is_cut: bool = False, is_refused: bool = False, is_inside: bool = False
) -> HarborGymError | None:
    """Return why the verdict of a trial does not count; None if it does.

    Harbor grades after most exceptions. A verdict counts if every exception of the trial and its steps allows it.

    Args:
        result: The trial, finished or between two steps, that has a verdict.
        is_cut: Whether its agent lost the connection to its policy, though no budget had run out.
        is_refused: Whether its agent was refused further answers because a budget had run out.
        is_inside: Whether its agent was a program in the sandbox, whose exit the policy can cause in any way.
    """
    for info in recorded_exceptions(result):
        if is_refused and info.exception_type in REFUSED_AGENT:
            continue
        if is_inside and not is_cut and is_exit_of_agent(info):
            continue
        if is_end_of_agent(info) and not (is_cut and info.exception_type == NON_ZERO_EXIT):
            continue
        is_known = _own_error(info) is not None or info.exception_type in VERIFIER_HINTS
        return grading_failure(result, info) if is_known else agent_failure(result, info)
    return None


def agent_failure(result: TrialResult, info: ExceptionInfo) -> AgentFailedError:
    """Return the error for an agent whose exception lets no reward count."""
    message = _clipped(info.exception_message).strip().splitlines() or ["no message"]
    return AgentFailedError(f"the agent of trial {result.trial_name!r} failed: {info.exception_type}: {message[-1]}")


@dataclass(frozen=True)
class SandboxFinding:
    """The state of an ended trial's sandbox, beside Harbor's own record."""

    is_shared: bool
    """Whether the last verifier graded in the policy's own sandbox."""

    breakage: str | None = None
    """How the policy broke it: :func:`harbor_gym.episode.grading.breakage.find_breakage` before its stop."""

    was_full: bool = False
    """Whether the policy filled its storage."""

    oom_kills: int = 0
    """Processes that its memory limit killed during grading."""

    verifier_timeout_sec: float | None = None
    """The verifier's time limit in seconds, if known: Harbor records its time-out only if the agent ended well."""

    is_well: bool = False
    """Whether it still answered after the verifier."""

    has_verdict_untouched: bool | None = None
    """Whether the same verifier gives a verdict in a sandbox that no policy was in; None where that is unknown."""


def policy_failure(result: TrialResult, finding: SandboxFinding, ambiguous: AmbiguousFailures = "zero") -> str | None:
    """Return in words why a trial without a verdict is the policy's failure; None if it is not, or has a verdict.

    Args:
        result: The finished trial, of our own loop or of one of Harbor's agents.
        finding: The state of its sandbox.
        ambiguous: ``TerminalEnvConfig.ambiguous_failures``.
    """
    last = result.step_results[-1] if result.step_results else result
    if last.verifier_result is not None:
        return None
    infos = _infos(result, last)
    for info in infos:
        if info.exception_type == BrokenByPolicyError.__name__:
            return _clipped(info.exception_message)
    if finding.breakage is not None or not infos:
        return finding.breakage
    info = infos[0]
    if info.exception_type in _GONE:
        return None
    if finding.was_full and finding.is_shared:
        return f"it left no room in its sandbox's storage: {_describe(info)}"
    if not finding.is_shared and _is_for_too_large_artifacts(info):
        return f"what it left does not fit into the verifier's sandbox: {_clipped(info.exception_message)}"
    if ambiguous != "zero":
        return None
    if finding.has_verdict_untouched and lacks_verdict(result, finding):
        return f"the verifier gives no verdict on what it left, and one in an untouched sandbox: {_describe(info)}"
    return _ambiguous_failure(last, info, finding)


def lacks_verdict(result: TrialResult, finding: SandboxFinding) -> bool:
    """Return whether a verifier ran to its end without a verdict, which the policy's programs or the task may cause.

    The same verifier in an untouched sandbox tells which: ``SandboxFinding.has_verdict_untouched``. It is not asked
    about what is decided without it, such as a verifier that ran out of time or memory.

    Args:
        result: The finished trial.
        finding: The state of its sandbox.
    """
    last = result.step_results[-1] if result.step_results else result
    if last.verifier_result is not None or last.verifier is None or not (infos := _infos(result, last)):
        return False
    info = infos[0]
    if finding.breakage is not None or finding.was_full or _ambiguous_failure(last, info, finding) is not None:
        return False  # known without asking; a verifier that runs out of time would take as long again
    if not finding.is_shared:
        return info.exception_type in _ODD_VERDICTS
    return finding.is_well and (info.exception_type in VERIFIER_HINTS or is_end_of_agent(info))


def is_of_verifier(result: TrialResult) -> bool:
    """Return whether a trial has no verdict because its last verifier, which ran, gave none."""
    last = result.step_results[-1] if result.step_results else result
    infos = _infos(result, last)
    return last.verifier is not None and bool(infos) and infos[0].exception_type in VERIFIER_HINTS


def _infos(result: TrialResult, last: StepResult | TrialResult) -> list[ExceptionInfo]:
    return [info for info in (last.exception_info, result.exception_info) if info is not None]


def _ambiguous_failure(last: StepResult | TrialResult, info: ExceptionInfo, finding: SandboxFinding) -> str | None:
    """Return in words a failure that either the policy or the task may have caused; None for any other."""
    if _is_of_set_up(last, info):
        return f"a later step could not be set up in the policy's sandbox: {_describe(info)}"
    if not finding.is_shared:
        return None
    if info.exception_type == "VerifierTimeoutError" or _took(last) >= (finding.verifier_timeout_sec or math.inf):
        return f"the verifier ran out of time in the policy's sandbox: {_describe(info)}"
    if finding.oom_kills and last.verifier is not None:
        return f"the verifier ran out of memory in the policy's sandbox: {_describe(info)}"
    return None


def _took(last: StepResult | TrialResult) -> float:
    """Return the seconds that the last verifier took; 0 if there was none."""
    timing = last.verifier
    if timing is None or timing.started_at is None or timing.finished_at is None:
        return 0.0
    return (timing.finished_at - timing.started_at).total_seconds()


def _is_of_set_up(last: StepResult | TrialResult, info: ExceptionInfo) -> bool:
    """Return whether a later step's own set-up failed; a trial's first step has no policy before it."""
    if not isinstance(last, StepResult) or last.agent_execution is not None:
        return False
    return info.exception_type == "HealthcheckError" or _SET_UP_FAILED in info.exception_message


def _is_for_too_large_artifacts(info: ExceptionInfo) -> bool:
    """Return whether a sandbox refused an upload of artifacts; that of the tests has another exception."""
    return info.exception_type == "SandboxError" and info.exception_message.startswith("can't upload ")


def lost(result: TrialResult) -> SandboxLostError:
    """Return the error for a trial that ended while the policy was still working.

    Args:
        result: The trial.
    """
    cause = _describe(result.exception_info) if result.exception_info else "no error was recorded"
    return SandboxLostError(f"the trial of task {result.task_name!r} ended under a running episode: {cause}")


def _step_cause(result: TrialResult) -> ExceptionInfo | None:
    return result.step_results[-1].exception_info if result.step_results else None


def _own_error(info: ExceptionInfo, cause: BaseException | None = None) -> HarborGymError | None:
    """Return this package's error that Harbor recorded, if it is one, with the attributes of ``cause``."""
    kind = getattr(errors, info.exception_type, None)
    if not (isinstance(kind, type) and issubclass(kind, HarborGymError)):
        return None
    error = kind(_clipped(info.exception_message))
    if isinstance(error, SandboxThrottledError):
        error.retry_after_sec = retry_after_sec(cause or error)
    return error


def _clipped(text: str) -> str:
    """Return the end of a text, which may quote all that a sandbox wrote."""
    return text if len(text) <= _MAX_TEXT else f"[… {len(text) - _MAX_TEXT} characters before] {text[-_MAX_TEXT:]}"


def _describe(info: ExceptionInfo) -> str:
    lines = info.exception_message.strip().splitlines() or ["no message"]
    if len(lines) > _DIAGNOSTICS_LINES:
        lines = [f"[… {len(lines) - _DIAGNOSTICS_LINES} lines before]", *lines[-_DIAGNOSTICS_LINES:]]
    return f"{info.exception_type}: " + _clipped("\n".join(lines))
