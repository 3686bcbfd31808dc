"""The contract of a terminal, independent of its transport."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harbor_gym.terminal.screen.screen import Screen
from harbor_gym.types import Command


@dataclass(frozen=True, slots=True)
class TerminalTurn:
    """The result of one call of :meth:`Terminal.run`."""

    text: str
    """The observation, at most ``TerminalConfig.max_observation_bytes`` of UTF-8."""

    ended: bool
    """Whether the shell session is gone: the policy typed ``exit``, killed its shell, or killed tmux."""

    waits: tuple[str, ...]
    """Why the wait for each command ended: ``prompt``, ``fullscreen``, ``tty_read``, ``deadline`` or ``ended``."""

    exit_code: int | None
    """Exit code of the last foreground command, if one finished in this turn; of the shell, if it ended."""

    duration_sec: float
    """Wall-clock time of the whole turn."""

    omitted_bytes: int
    """UTF-8 bytes of output that ``text`` leaves out."""

    transport: str
    """The transport of the turn: ``portable`` or ``persistent``; ``mcp`` for calls of tools, ``none`` without one."""

    shown: tuple[str, ...] = ()
    """The whole screen at the turn's end, wrapped rows joined, uncut; empty if there was no screen."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The processes and files of a session that stay in its sandbox after its terminal is detached."""

    pids: tuple[str, ...]
    """The process ids of its shell and its tmux server, in the sandbox."""

    directory: str
    """Its private directory in the sandbox."""


class Terminal(Protocol):
    """One interactive shell inside a sandbox. One call at a time."""

    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        """Type ``commands`` in order, wait for each, and return the new text on the screen.

        An empty sequence types nothing and reads the screen. After the session has ended nothing is typed, and the turn
        reports the end; it is no error.

        Raises:
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The sandbox did not answer; the keystrokes may or may not have arrived.
        """
        ...

    async def screen(self) -> Screen | None:
        """Return the current screen, or None if the session is gone. Later observations are not affected.

        Raises:
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The sandbox did not answer.
        """
        ...

    @property
    def leftovers(self) -> Leftovers:
        """The processes and files to remove for a caller that detaches the terminal instead of closing it."""
        ...

    async def detach(self) -> None:
        """Release this machine's resources for the session, which goes on in the sandbox. Idempotent."""
        ...

    async def close(self) -> None:
        """End the session and stop every process that was started in it.

        Idempotent; a failure of the sandbox is ignored if the session had ended before. A process that left the
        session's process tree and cleared its own environment is not stopped.

        Raises:
            SandboxLostError: The sandbox is gone.
            SandboxTimeoutError: The sandbox did not answer; processes may remain in it.
        """
        ...
