"""A running sandbox that processes of this machine enter: what its environment requires of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harbor_gym.sandboxes.archive.transfers import Work
from harbor_gym.sandboxes.local.supervisor.kernel.capabilities import POLICY, SERVICE
from harbor_gym.sandboxes.pipes import Output


@dataclass(frozen=True, slots=True)
class Request:
    """One command, resolved: who, where, with what environment."""

    command: str
    """For the image's shell; where ``argv`` is given, what errors call it."""

    user: str
    cwd: str
    env: Mapping[str, str]
    argv: tuple[str, ...] = ()
    """A program, by its path or by its name in PATH, and its arguments: run without a shell."""

    joins_outputs: bool = False
    """Whether standard error goes where standard output goes."""


class Ranks:
    """Which rank the next command of one sandbox has: the memory and files of a higher rank's processes are closed."""

    def __init__(self) -> None:
        self._has_policy = False
        self.in_view: str | None = None
        """The rank of a command that sees a view; None where there is none."""

    @property
    def outside_of_view(self) -> str:
        """The rank of a command that sees the sandbox's own files."""
        return POLICY if self._has_policy else SERVICE

    @property
    def now(self) -> str:
        """The rank of a command that sees whatever files are to be seen now."""
        return self.in_view or self.outside_of_view

    def note_work(self, work: str) -> None:
        """Take note of a work of the clean-up: with the first baseline the sandbox becomes its policy's, for good."""
        self._has_policy = self._has_policy or work == "baseline"


@dataclass(frozen=True, slots=True)
class Finished:
    """A command's end."""

    return_code: int
    stdout: Output
    stderr: Output


class RunningSandbox(Protocol):
    """One sandbox. Every method raises ``SandboxLostError`` when the sandbox is gone."""

    @property
    def is_running(self) -> bool:
        """Whether commands can still be run."""
        ...

    def enter_argv(self, request: Request) -> list[str]:
        """Return an argument vector that runs a command with the stdio of whoever starts it."""
        ...

    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        """Move files, by a process that sees the sandbox's and by ``work`` on this machine's side of the stream."""
        ...

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Run one of the functions of the supervisor's ``cleanup`` module."""
        ...

    async def enter_view(self, paths: Sequence[str], *, rank: str, also: Sequence[str] = ()) -> None:
        """Switch commands and transfers to the image as it was, with these paths as they are.

        Args:
            paths: What is carried; where it is not there, the view has nothing there either.
            rank: That of the commands in the view.
            also: What is carried where it is there; else the image's stays.
        """
        ...

    async def leave_view(self) -> None:
        """Switch commands and transfers back to the sandbox's own files. Idempotent."""
        ...

    async def merge_view(self, *, timeout_sec: float) -> str:
        """Copy what was written in the view to the sandbox's own files, and leave it.

        What runs in the view keeps its files.

        Returns:
            Why not all could be copied; empty where all was.
        """
        ...

    async def written_paths(self) -> list[str]:
        """Return the paths that were written in the sandbox since its start, or deleted."""
        ...
