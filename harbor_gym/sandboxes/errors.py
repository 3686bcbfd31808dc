"""The errors of tasks and sandboxes; :mod:`harbor_gym.errors` has them too, and draws the whole tree."""

from harbor_gym._runtime.errors import HarborGymError


class TaskError(HarborGymError):
    """The task directory is not a usable Harbor task."""


class TaskUnsupportedError(TaskError):
    """The task asks for something that this sandbox, or any terminal, does not offer. Another sandbox may run it."""


class SandboxError(HarborGymError):
    """The sandbox failed, and the policy did not cause it."""

    is_infrastructure = True


class SandboxStartError(SandboxError):
    """The sandbox could not be built, started or prepared."""


class SandboxThrottledError(SandboxStartError):
    """The sandbox's provider refuses to start more for now, by a rate limit or a quota. A later start may succeed."""

    def __init__(self, message: str, retry_after_sec: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_sec = retry_after_sec
        """Seconds that the provider asked to wait; None if it asked for none."""


class SandboxLostError(SandboxError):
    """The sandbox disappeared while the episode was running."""


class SandboxMemoryError(SandboxLostError):
    """The sandbox itself, and not only a process in it, was killed for lack of memory."""


class SandboxTimeoutError(SandboxError):
    """The sandbox did not answer within the time allowed."""
