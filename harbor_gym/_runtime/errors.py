"""The base of the error tree, which :mod:`harbor_gym.errors` draws."""

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
