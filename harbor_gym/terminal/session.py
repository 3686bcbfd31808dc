"""The contract of a terminal: its input and its output, whichever transport carries them."""

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
    """The shell session is gone: the policy typed ``exit``, killed its shell, or killed tmux."""

    waits: tuple[str, ...]
    """Why the wait for each command was over: ``prompt``, ``fullscreen``, ``tty_read``, ``deadline`` or ``ended``."""

    exit_code: int | None
    """Exit code of the last foreground command, if one finished in this turn; of the shell, if it ended."""

    duration_sec: float
    """Wall-clock time of the whole turn."""

    omitted_bytes: int
    """UTF-8 bytes of output that ``text`` leaves out."""

    transport: str
    """Which transport carried the turn: ``portable`` or ``persistent``."""

    shown: tuple[str, ...] = ()
    """The whole screen at the turn's end, wrapped rows joined, uncut; empty where there was nothing to look at."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The leftovers of a session in its sandbox after its terminal is detached."""

    pids: tuple[str, ...]
    """Its shell and its server, by their ids in the sandbox."""

    directory: str
    """Its private directory."""


class Terminal(Protocol):
    """One interactive shell inside a sandbox. One call at a time."""

    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        """Type ``commands`` in order, wait for each, and return what is new on the screen.

        An empty sequence types nothing and looks at the screen. After the session has ended nothing is typed and
        the turn reports it; it is no error.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxTimeoutError: the sandbox did not answer; what was typed may or may not have arrived.
        """
        ...

    async def screen(self) -> Screen | None:
        """Return the screen as it is now, or None when the session is gone. No later observation changes for it.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxTimeoutError: the sandbox did not answer.
        """
        ...

    @property
    def leftovers(self) -> Leftovers:
        """The leftovers that a caller may remove if it detaches the terminal instead of closing it."""
        ...

    async def detach(self) -> None:
        """Release everything that this machine holds for the session, which goes on in the sandbox. Idempotent."""
        ...

    async def close(self) -> None:
        """End the session and stop every process that was started in it.

        Idempotent, and silent about the sandbox if the session had ended before. Not stopped: a process that
        left the session's process tree and wiped its own environment.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxTimeoutError: the sandbox did not answer; processes may be left in it.
        """
        ...
