"""Harbor's ways to fail, made into our error tree. This is the one seam where that happens."""

from harbor.models.trial.result import ExceptionInfo, TrialResult

from harbor_gym import errors
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

_DIAGNOSTICS_LINES = 30

_START_TIMEOUT = "EnvironmentStartTimeoutError"

_VERIFIER_HINTS = {
    "RewardFileNotFoundError": "tests/test.sh must write /logs/verifier/reward.txt or reward.json, also when it fails",
    "RewardFileEmptyError": "tests/test.sh left an empty reward file",
    "VerifierOutputParseError": "the reward must be one finite number, or a JSON object of such",
    "VerifierTimeoutError": "raise [verifier] timeout_sec in task.toml if the tests need longer",
    "AddTestsDirError": "the tests could not be copied into the sandbox",
    "DownloadVerifierDirError": "the verifier's files could not be read back from the sandbox",
}


def start_failure(result: TrialResult, cause: BaseException | None = None) -> HarborGymError:
    """Return the error for a trial that ended before the agent's phase began.

    Args:
        result: The finished trial.
        cause: What the sandbox raised when it was started, if that is why.
    """
    info = result.exception_info or _step_cause(result)
    if info is None:
        return SandboxStartError(f"trial of task {result.task_name!r} ended before the agent could run, with no error")
    if (own := _own_error(info, cause)) is not None:
        return own
    if result.agent_setup is not None:
        return AgentFailedError(f"the agent of task {result.task_name!r} could not be set up: {_describe(info)}")
    message = f"the sandbox of task {result.task_name!r} did not start: {_describe(info)}"
    if cause is not None and is_throttled(cause):
        return SandboxThrottledError(message, retry_after_sec(cause))
    kind = SandboxTimeoutError if info.exception_type == _START_TIMEOUT else SandboxStartError
    return kind(message)


def step_failure(result: TrialResult) -> HarborGymError:
    """Return the error for a multi-step trial that ended because a later step could not be set up.

    Args:
        result: The finished trial.
    """
    info = _step_cause(result)
    if info is not None and (own := _own_error(info)) is not None:
        return own
    step = result.step_results[-1].step_name if result.step_results else "?"
    cause = _describe(info) if info is not None else "no error was recorded"
    return SandboxStartError(f"step {step!r} of task {result.task_name!r} could not be set up: {cause}")


def grading_failure(result: TrialResult, info: ExceptionInfo | None, oom_kills: int = 0) -> HarborGymError:
    """Return the error for a trial whose verifier gave no verdict.

    Args:
        result: The trial.
        info: What Harbor recorded as the cause, if anything.
        oom_kills: Processes that the sandbox's memory limit killed while it graded.
    """
    if info is None:
        return VerifierError(f"task {result.task_name!r} ended without a verdict and without an error")
    own = _own_error(info)
    if isinstance(own, SandboxMemoryError):
        return VerifierOutOfMemoryError(f"the verifier of task {result.task_name!r} gave no verdict: {own}")
    if own is not None:
        return own
    hint = _VERIFIER_HINTS.get(info.exception_type)
    message = f"the verifier of task {result.task_name!r} gave no verdict: {_describe(info)}"
    if oom_kills:
        ran_out = f"its sandbox's memory limit killed {oom_kills} of its processes: raise [environment] memory_mb"
        return VerifierOutOfMemoryError(f"{message} ({ran_out})")
    return VerifierError(f"{message} ({hint})" if hint else message)


def breakage(result: TrialResult) -> str | None:
    """Return what the trial records of a policy that broke its sandbox; None where it records none.

    Args:
        result: The trial.
    """
    for info in (_step_cause(result), result.exception_info):
        if info is not None and info.exception_type == BrokenByPolicyError.__name__:
            return info.exception_message
    return None


def lost(result: TrialResult) -> SandboxLostError:
    """Return the error for a trial that ended while the policy was still at work.

    Args:
        result: The trial.
    """
    cause = _describe(result.exception_info) if result.exception_info else "no error was recorded"
    return SandboxLostError(f"the trial of task {result.task_name!r} ended under a running episode: {cause}")


def _step_cause(result: TrialResult) -> ExceptionInfo | None:
    return result.step_results[-1].exception_info if result.step_results else None


def _own_error(info: ExceptionInfo, cause: BaseException | None = None) -> HarborGymError | None:
    """Return the error of ours that Harbor recorded, with the attributes of ``cause``, which its text lacks."""
    kind = getattr(errors, info.exception_type, None)
    if not (isinstance(kind, type) and issubclass(kind, HarborGymError)):
        return None
    error = kind(info.exception_message)
    if isinstance(error, SandboxThrottledError):
        error.retry_after_sec = retry_after_sec(cause or error)
    return error


def _describe(info: ExceptionInfo) -> str:
    lines = info.exception_message.strip().splitlines() or ["no message"]
    if len(lines) > _DIAGNOSTICS_LINES:
        lines = [f"[… {len(lines) - _DIAGNOSTICS_LINES} lines before]", *lines[-_DIAGNOSTICS_LINES:]]
    return f"{info.exception_type}: " + "\n".join(lines)
