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
└── UnexpectedError         an exception that is none of these, between the policy's first action and the reward

SandboxError, TerminalError, VerifierError, SamplerError, ForkDivergedError, AgentFailedError, UnexpectedError and the
errors below them are infrastructure failures: they do not measure the policy and must never become a reward.
``is_infrastructure`` marks them; :mod:`harbor_gym.outcomes` has a name and a remedy for each.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self, override

_OBEYED = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""C0 except tabs and line ends, DEL, C1, Unicode's direction controls, and what neither UTF-8 nor XML can hold."""


def printable(text: str, *, mark: str | None = None) -> str:
    r"""Return a text as terminals, XML and HTML can show it, without control characters.

    Line feeds (with or without a carriage return) and tabs stay.

    Source: ECMA-48 (C0 and C1), UAX #9 (the characters for directions), XML 1.0 (its characters).

    Args:
        text: A text that a sandbox may have written.
        mark: What replaces each such character, where columns matter; None is its escape sequence in Python, as
            ``\x1b``.
    """
    return _OBEYED.sub(lambda found: mark or found[0].encode("unicode_escape").decode(), text)


class HarborGymError(Exception):
    """Base of every error that harbor_gym raises on purpose.

    Its text and its notes may quote a sandbox's output, and tracebacks and logs show them: control characters in them
    are written as escape sequences.
    """

    is_infrastructure: bool = False

    diagnostics: Mapping[str, str] = MappingProxyType({})
    """The last lines of the trial's ``exception``, ``verifier_output`` and ``trial_log``, as far as they exist.

    The text is raw, for programs: it may contain a sandbox's escape sequences.
    """

    trial_dir: Path | None = None
    """The trial's folder, if it is kept."""

    @override
    def __str__(self) -> str:
        return printable(super().__str__())

    @override
    def add_note(self, note: str, /) -> None:
        """Add a note, with control characters written as escape sequences."""
        super().add_note(printable(note))

    def attach(self, diagnostics: Mapping[str, str], *, trial_dir: Path | None) -> Self:
        """Add a trial's diagnostics to the error, as attributes and as notes; they survive pickling.

        Args:
            diagnostics: Text by name.
            trial_dir: The trial's folder; None if it will be removed.
        """
        self.diagnostics, self.trial_dir = dict(diagnostics), trial_dir
        for name, text in diagnostics.items():
            self.add_note(f"--- {name} ---\n{text}")
        if trial_dir is not None:
            self.add_note(f"trial folder: {trial_dir}")
        return self


class UsageError(HarborGymError, ValueError):
    """A call came in the wrong order or with an argument that can't be used."""


class MissingDependencyError(HarborGymError, ImportError):
    """An optional package or a program is not installed; the message states how to get it."""


class TaskError(HarborGymError):
    """The task directory is not a usable Harbor task."""


class TaskSourceError(TaskError):
    """A git repository or a registry can't be reached, or has no such task."""


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


class UnexpectedError(HarborGymError):
    """An exception that is not of this package ended an episode between the policy's first action and the reward.

    Its cause is that exception. What the policy left behind may have caused it, so that it ends this episode only; see
    :func:`harbor_gym.outcomes.losing_one_episode`.
    """

    is_infrastructure = True
