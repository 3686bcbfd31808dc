"""The ranks of a supervised sandbox's commands, and how one ended."""

from __future__ import annotations

from dataclasses import dataclass

from harbor_gym.sandboxes.pipes import Output
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import POLICY, SERVICE


class Ranks:
    """The rank of one sandbox's next command; processes of a higher rank have closed memory and files."""

    def __init__(self) -> None:
        self._has_policy = False
        self.in_view: str | None = None
        """The rank of a command that sees a view; None without a view."""

    @property
    def outside_of_view(self) -> str:
        """The rank of a command that sees the sandbox's own files."""
        return POLICY if self._has_policy else SERVICE

    @property
    def now(self) -> str:
        """The rank of a command that sees the current files, a view's or the sandbox's own."""
        return self.in_view or self.outside_of_view

    def note_work(self, work: str) -> None:
        """Take note of a work of the clean-up: with the first baseline the sandbox becomes its policy's, for good."""
        if work == "baseline":
            self.note_policy()

    def note_policy(self) -> None:
        """Take note that the sandbox is its policy's."""
        self._has_policy = True


@dataclass(frozen=True, slots=True)
class Finished:
    """A command's end."""

    return_code: int
    stdout: Output
    stderr: Output
