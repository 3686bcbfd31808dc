"""A running sandbox that processes of this machine enter, as its environment sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harbor_gym.sandboxes.archive.transfers import Work
from harbor_gym.sandboxes.pipes import Output
from harbor_gym.sandboxes.supervisor.before_policy import BeforePolicy
from harbor_gym.sandboxes.supervisor.carrier import Carriers
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import POLICY, SERVICE
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec


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
        """The rank of a command that sees the files that are to be seen now."""
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


class RunningSandbox(ABC):
    """One sandbox. Every method raises ``SandboxLostError`` when the sandbox is gone."""

    def __init__(self) -> None:
        self._ranks = Ranks()
        self._before_policy = BeforePolicy()
        self._carriers = Carriers()
        self._asked: list[str] = []
        """What the view was asked to carry."""
        self.commands = 0
        """How many were run or prepared so far."""

    def _filled_in(self, spec: CommandSpec, rank: str) -> CommandSpec:
        """Return a command with what only this object knows: its user's ids before the policy, and its rank."""
        self.commands += 1
        return spec._replace(identity=self._before_policy.identity(spec.user), rank=rank)

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether commands can still be run."""

    @abstractmethod
    def enter_argv(self, request: CommandSpec) -> list[str]:
        """Return an argument vector that runs a command with the stdio of its starter.

        The command sees the sandbox's own files, also while there is a view.
        """

    @abstractmethod
    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        """Move files, by a process that sees the sandbox's and by ``work`` on this machine's side of the stream.

        Raises:
            SandboxTimeoutError: It took too long.
            Exception: What ``work`` raises.
        """

    @abstractmethod
    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Run one of the functions of the supervisor's ``cleanup`` module, by no program of the sandbox's.

        Args:
            work: Its name.
            arguments: What it is called with.
            timeout_sec: After so long it is killed.

        Returns:
            What it returned.

        Raises:
            SandboxError: It failed.
            SandboxTimeoutError: The time was up.
        """

    @abstractmethod
    async def enter_view(self, paths: Sequence[str], *, rank: str, also: Sequence[str] = ()) -> None:
        """Switch commands and transfers to the image as it was, with these paths as they are.

        Args:
            paths: What is carried; where it is not there, the view has nothing there either.
            rank: That of the commands in the view.
            also: What is carried where it is there; else the image's stays.

        Raises:
            SandboxError: The kernel refuses.
        """

    @abstractmethod
    async def leave_view(self) -> None:
        """Switch commands and transfers back to the sandbox's own files, and drop the view. Idempotent."""

    @abstractmethod
    async def merge_view(self, *, timeout_sec: float) -> str:
        """Copy what was written in the view to the sandbox's own files, and leave it.

        What runs in the view keeps its files.

        Returns:
            Why not all could be copied; empty where all was.

        Raises:
            SandboxError: It failed.
            SandboxTimeoutError: The time was up.
        """

    @abstractmethod
    async def written_paths(self) -> list[str]:
        """Return the paths that were written in the sandbox since its start, or deleted: some thousand at most.

        Raises:
            SandboxError: They can't be listed.
        """
