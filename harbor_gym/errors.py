"""The error tree.

HarborGymError
├── UsageError              a call in the wrong order or with a wrong argument
├── MissingDependencyError  an optional package or program is not installed
├── TaskError               the task directory is wrong
│   ├── TaskSourceError         its git repository or registry can't be reached, or has no such task
│   └── TaskUnsupportedError    it asks for something that this sandbox, or any terminal, does not offer
├── SandboxError            the sandbox failed
│   ├── SandboxStartError       it could not be built or started
│   │   └── SandboxThrottledError   its provider requires fewer or later starts (rate limit, quota)
│   ├── SandboxLostError        it disappeared during a running episode
│   │   └── SandboxMemoryError      because the kernel killed it for lack of memory
│   └── SandboxTimeoutError     it did not answer in time
├── TerminalError           the terminal inside the sandbox failed
│   └── TerminalStartError      no usable shell session could be opened
├── VerifierError           the verifier gave no verdict (crash, timeout, missing or broken reward file)
│   └── VerifierOutOfMemoryError  the sandbox's memory limit killed part of it
├── SamplerError            the engine that samples the policy's messages failed
│   └── BudgetSpentError        its budget ran out: the episode ends truncated and is verified, which is no failure
│       └── ContextOverflowError    because the prompt does not fit its context window
├── ForkDivergedError       the replay of an episode's keystrokes shows another screen than the episode did
├── AgentFailedError        the program of a foreign agent failed, and left nothing to verify or to train on
├── FindingError            an episode has a finding at which the run is to end (stop_on_finding)
└── UnexpectedError         an exception that is none of these, between the policy's first action and the reward

SandboxError, TerminalError, VerifierError, SamplerError, ForkDivergedError, AgentFailedError, UnexpectedError and the
errors below them are infrastructure failures: they do not measure the policy and must never become a reward.
``is_infrastructure`` marks them; :mod:`harbor_gym.outcomes` has a name and a remedy for each.
"""

from harbor_gym._runtime.errors import HarborGymError, MissingDependencyError, UsageError, printable
from harbor_gym.sandboxes.errors import (
    SandboxError,
    SandboxLostError,
    SandboxMemoryError,
    SandboxStartError,
    SandboxThrottledError,
    SandboxTimeoutError,
    TaskError,
    TaskUnsupportedError,
)

__all__ = [
    "AgentFailedError",
    "BudgetSpentError",
    "ContextOverflowError",
    "FindingError",
    "ForkDivergedError",
    "HarborGymError",
    "MissingDependencyError",
    "SamplerError",
    "SandboxError",
    "SandboxLostError",
    "SandboxMemoryError",
    "SandboxStartError",
    "SandboxThrottledError",
    "SandboxTimeoutError",
    "TaskError",
    "TaskSourceError",
    "TaskUnsupportedError",
    "TerminalError",
    "TerminalStartError",
    "UnexpectedError",
    "UsageError",
    "VerifierError",
    "VerifierOutOfMemoryError",
    "printable",
]


class TaskSourceError(TaskError):
    """A git repository or a registry can't be reached, or has no such task."""


class TerminalError(HarborGymError):
    """The terminal inside the sandbox failed, and the policy did not cause it."""

    is_infrastructure = True


class TerminalStartError(TerminalError):
    """No usable shell session could be opened, for instance because the image has no tmux."""


class VerifierError(HarborGymError):
    """The verifier gave no verdict: it crashed, timed out, or wrote no usable reward."""

    is_infrastructure = True


class VerifierOutOfMemoryError(VerifierError):
    """The verifier gave no verdict, and the sandbox's memory limit killed a process while it ran."""


class SamplerError(HarborGymError):
    """The engine that samples the policy's messages failed, or can't be reached."""

    is_infrastructure = True


class BudgetSpentError(SamplerError):
    """The engine gives no further answer because a budget ran out. The episode ends truncated, and is verified."""

    reason: str = "max_turns"
    """Why the episode ends: the value of an :class:`harbor_gym.EndReason` that is a truncation."""


class ContextOverflowError(BudgetSpentError):
    """The engine refuses the prompt because it does not fit its context window."""

    reason = "context_overflow"


class ForkDivergedError(HarborGymError):
    """The replay of an episode's keystrokes shows another screen than the episode did.

    A command's output varies (a time, a random number, a race), or the sandbox differs.
    """

    is_infrastructure = True

    def __init__(self, message: str, turn: int = 0, diff: str = "") -> None:
        super().__init__(message)
        self.turn = turn
        """The first turn that differs; 0 is the screen after ``reset``."""

        self.diff = diff
        """The difference of the two observations, in the unified format."""


class AgentFailedError(HarborGymError):
    """A foreign agent's program could not be installed, failed before anything could be verified, or reported tokens
    that can't be trained on."""

    is_infrastructure = True


class FindingError(HarborGymError):
    """An episode has a finding of the audit at which the training run is to end (``stop_on_finding``)."""


class UnexpectedError(HarborGymError):
    """An exception that is not of this package ended an episode between the policy's first action and the reward.

    Its cause is that exception. What the policy left behind may have caused it, so that it ends this episode only; see
    :func:`harbor_gym.outcomes.losing_one_episode`.
    """

    is_infrastructure = True
