"""The interface of a running sandbox that processes of this machine enter."""

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


class RunningSandbox(ABC):
    """One sandbox. Every method raises ``SandboxLostError`` when the sandbox is gone."""

    def __init__(self) -> None:
        self._ranks = Ranks()
        self._before_policy = BeforePolicy()
        self._carriers = Carriers()
        self._asked: list[str] = []
        """The paths that the view carries."""
        self.commands = 0
        """Number of commands run or prepared so far."""

    def _filled_in(self, spec: CommandSpec, rank: str) -> CommandSpec:
        """Return a command, completed with its user's ids from before the policy and its rank."""
        self.commands += 1
        return spec._replace(identity=self._before_policy.identity(spec.user), rank=rank)

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether commands can still run."""

    @abstractmethod
    def enter_argv(self, request: CommandSpec) -> list[str]:
        """Return an argument vector that runs a command with the stdio of its starter.

        The command sees the sandbox's own files, even during a view.
        """

    @abstractmethod
    async def carry(self, spec: Mapping[str, Any], work: Work) -> None:
        """Transfer files between a process that sees the sandbox's and ``work``, this machine's side of the stream.

        Raises:
            SandboxTimeoutError: It took too long.
            Exception: What ``work`` raises.
        """

    @abstractmethod
    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Run a function of the supervisor's ``cleanup`` module, without a program of the sandbox.

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
    async def enter_view(
        self, paths: Sequence[str], *, rank: str, also: Sequence[str] = (), apart: Sequence[str] = ()
    ) -> None:
        """Switch commands and transfers to the original image, with the sandbox's current state of these paths.

        Args:
            paths: What is carried; where it is not there, the view has nothing there either.
            rank: That of the commands in the view.
            also: What is carried where it is there; else the image's stays.
            apart: If there are any: see the sandbox's own files instead, with empty directories of the view's alone at
                these paths.

        Raises:
            SandboxError: The kernel refuses.
        """

    @abstractmethod
    async def leave_view(self) -> None:
        """Switch commands and transfers back to the sandbox's own files, and drop the view. Idempotent."""

    @abstractmethod
    async def merge_view(self, *, timeout_sec: float) -> str:
        """Copy the files written in the view to the sandbox's own, and leave the view.

        Processes in the view keep its files.

        Returns:
            Why not all could be copied; empty where all was.

        Raises:
            SandboxError: It failed.
            SandboxTimeoutError: The time was up.
        """

    @abstractmethod
    async def written_paths(self) -> list[str]:
        """Return the paths written or deleted in the sandbox since its start, a few thousand at most.

        Raises:
            SandboxError: They can't be listed.
        """
