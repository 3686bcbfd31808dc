"""The error tree.

HarborGymError
├── UsageError              a call in the wrong order or with a wrong argument
├── MissingDependencyError  an optional package or program is not installed
├── TaskError               the task directory is wrong
├── SandboxError            the sandbox failed
│   ├── SandboxStartError       it could not be built or started
│   ├── SandboxLostError        it went away under a running episode
│   └── SandboxTimeoutError     it did not answer in time
├── TerminalError           the terminal inside the sandbox failed
│   └── TerminalStartError      no usable shell session could be opened
└── VerifierError           the verifier gave no verdict (crash, timeout, missing or broken reward file)

Everything below SandboxError, TerminalError and VerifierError is an infrastructure failure: it says nothing
about the policy and must never become a reward. ``is_infrastructure`` tells them apart.
"""


class HarborGymError(Exception):
    """Base of every error that harbor_gym raises on purpose."""

    is_infrastructure: bool = False


class UsageError(HarborGymError, ValueError):
    """A call came in the wrong order or with an argument that can't be used."""


class MissingDependencyError(HarborGymError, ImportError):
    """An optional package or a program is not installed; the message says how to get it."""


class TaskError(HarborGymError):
    """The task directory is not a usable Harbor task."""


class SandboxError(HarborGymError):
    """The sandbox failed for a reason that is not the policy's doing."""

    is_infrastructure = True


class SandboxStartError(SandboxError):
    """The sandbox could not be built, started or prepared."""


class SandboxLostError(SandboxError):
    """The sandbox went away while the episode was running."""


class SandboxTimeoutError(SandboxError):
    """The sandbox did not answer within the time allowed."""


class TerminalError(HarborGymError):
    """The terminal inside the sandbox failed for a reason that is not the policy's doing."""

    is_infrastructure = True


class TerminalStartError(TerminalError):
    """No usable shell session could be opened, for instance because the image has no tmux."""


class VerifierError(HarborGymError):
    """The verifier gave no verdict: it crashed, timed out, or wrote no usable reward."""

    is_infrastructure = True
