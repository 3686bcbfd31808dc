"""The error tree.

HarborGymError
├── UsageError              a call in the wrong order or with a wrong argument
├── MissingDependencyError  an optional package or program is not installed
├── TaskError               the task directory is wrong
│   ├── TaskSourceError         where it should come from can't be reached, or has no such task
│   └── TaskUnsupportedError    it may be fine, but asks for what this sandbox, or a terminal, has not
├── SandboxError            the sandbox failed
│   ├── SandboxStartError       it could not be built or started
│   │   └── SandboxThrottledError   its provider requires fewer or later starts (rate limit, quota)
│   ├── SandboxLostError        it went away under a running episode
│   │   └── SandboxMemoryError      because the kernel killed it for lack of memory
│   └── SandboxTimeoutError     it did not answer in time
├── TerminalError           the terminal inside the sandbox failed
│   └── TerminalStartError      no usable shell session could be opened
├── VerifierError           the verifier gave no verdict (crash, timeout, missing or broken reward file)
│   └── VerifierOutOfMemoryError  the sandbox's memory limit killed part of it
├── SamplerError            the engine that samples the policy's messages failed
│   └── BudgetSpentError        it grants no further answer: not a failure, the episode ends truncated and is verified
│       └── ContextOverflowError    because the prompt does not fit its context window
├── ForkDivergedError       the replay of an episode's keystrokes shows another screen than the episode did
└── AgentFailedError        the program of a foreign agent failed, and left nothing to verify or to train on

Everything below SandboxError, TerminalError and VerifierError, SamplerError, ForkDivergedError and AgentFailedError is
an infrastructure failure: it does not measure the policy and must never become a reward. ``is_infrastructure`` marks
it; :mod:`harbor_gym.outcomes` has one word for each, and what to do about it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self, override

_OBEYED = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tabs and line ends, DEL, C1, what changes the direction of writing, and what no terminal's encoding has."""


def printable(text: str) -> str:
    r"""Return a text without control characters: each becomes its escape sequence in Python, as ``\x1b``.

    Line feeds (with or without a carriage return) and tabs stay.

    Source: ECMA-48 (C0 and C1), UAX #9 (the characters for directions).
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class HarborGymError(Exception):
    """Base of every error that harbor_gym raises on purpose.

    Its text and its notes may quote what a sandbox printed, and are shown by tracebacks and logs: control characters in
    them are spelled out.
    """

    is_infrastructure: bool = False

    diagnostics: Mapping[str, str] = MappingProxyType({})
    """What the trial left, as far as there is any: the ends of ``exception``, ``verifier_output``, ``trial_log``.

    It is the raw text, for programs: a sandbox may have put escape sequences into it.
    """

    trial_dir: Path | None = None
    """The trial's folder, if it is kept."""

    @override
    def __str__(self) -> str:
        return printable(super().__str__())

    @override
    def add_note(self, note: str, /) -> None:
        """Add a note, with control characters spelled out."""
        super().add_note(printable(note))

    def attach(self, diagnostics: Mapping[str, str], *, trial_dir: Path | None) -> Self:
        """Put what the trial left on the error, for programs as attributes and for people as notes; survives pickling.

        Args:
            diagnostics: Text by name.
            trial_dir: The trial's folder, None where that is going to be removed.
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
    """The task asks for something that the sandbox, or a terminal, has not. On another sandbox it may well run."""


class SandboxError(HarborGymError):
    """The sandbox failed for a reason that is not the policy's doing."""

    is_infrastructure = True


class SandboxStartError(SandboxError):
    """The sandbox could not be built, started or prepared."""


class SandboxThrottledError(SandboxStartError):
    """The sandbox's provider refuses to start more for now: a rate limit or a quota. Later it may be granted."""

    def __init__(self, message: str, retry_after_sec: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_sec = retry_after_sec
        """Seconds that the provider asked to wait, where it did."""


class SandboxLostError(SandboxError):
    """The sandbox went away while the episode was running."""


class SandboxMemoryError(SandboxLostError):
    """The sandbox itself, and not only what ran in it, was killed for lack of memory."""


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


class VerifierOutOfMemoryError(VerifierError):
    """The verifier gave no verdict, and the sandbox's memory limit killed a process while it ran."""


class SamplerError(HarborGymError):
    """The engine that samples the policy's messages failed, or can't be reached."""

    is_infrastructure = True


class BudgetSpentError(SamplerError):
    """The engine grants no further answer: a budget ran out. The episode ends truncated, and is verified."""

    reason: str = "max_turns"
    """Why the episode ends: the word of an :class:`harbor_gym.EndReason` that is a truncation."""


class ContextOverflowError(BudgetSpentError):
    """The engine refuses the prompt because it does not fit its context window."""

    reason = "context_overflow"


class ForkDivergedError(HarborGymError):
    """The replay of an episode's keystrokes shows another screen than the episode did.

    A command's output varies (a time, a random number, a race), or the sandbox is another one.
    """

    is_infrastructure = True

    def __init__(self, message: str, turn: int = 0, diff: str = "") -> None:
        super().__init__(message)
        self.turn = turn
        """The first turn that differs; 0 is the screen after ``reset``."""

        self.diff = diff
        """The difference of the two observations, in the unified format."""


class AgentFailedError(HarborGymError):
    """A foreign agent's program could not be installed, or failed so that nothing was verified, or it reported tokens
    that can't be trained on."""

    is_infrastructure = True
