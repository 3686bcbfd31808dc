"""The measured terminals: ours over each of its transports, and Harbor's ``TmuxSession`` as Terminus-2 uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal, open_terminal
from harbor_gym.types import Command

if TYPE_CHECKING:
    from harbor.agents.terminus_2.tmux_session import TmuxSession
    from harbor.environments.base import BaseEnvironment

HARBOR = "harbor"
"""Name of Harbor's own terminal in reports."""

PORTABLE = "portable"
PERSISTENT = "persistent"
TRANSPORTS = (PORTABLE, PERSISTENT)


class Implementation(Protocol):
    """One terminal session, in a sandbox that all implementations share."""

    name: str
    fallbacks: int
    """Turns that used another transport than the measured one."""

    async def open(self) -> None:
        """Start a fresh session; the previous one must be closed."""
        ...

    async def run(self, commands: Sequence[Command]) -> str:
        """Take one turn; return its observation."""
        ...

    async def close(self) -> None:
        """End the session and all its processes."""
        ...


def terminal_config(transport: str | None, **settings: Any) -> TerminalConfig:
    """Return a configuration with a transport and further settings; None leaves the transport to the terminal."""
    return TerminalConfig.model_validate({"transport": transport or "auto", **settings})


class OurTerminal:
    """Our terminal over one transport."""

    def __init__(self, environment: BaseEnvironment, transport: str) -> None:
        self.name = transport
        self.fallbacks = 0
        self._environment = environment
        self._terminal: Terminal | None = None

    async def open(self) -> None:
        """See :class:`Implementation`."""
        self._terminal = await open_terminal(self._environment, terminal_config(self.name))
        await self._terminal.run([])

    async def run(self, commands: Sequence[Command]) -> str:
        """See :class:`Implementation`."""
        assert self._terminal is not None, "run() before open()"
        turn = await self._terminal.run(commands)
        self.fallbacks += turn.transport != self.name
        return turn.text

    async def close(self) -> None:
        """See :class:`Implementation`."""
        if self._terminal is not None:
            await self._terminal.close()


class HarborTerminal:
    """Harbor's ``TmuxSession``, used as in Terminus-2's command loop, which sleeps for every duration.

    Terminus-2 then limits the text to 10 000 bytes, half from each end. Here it is judged uncut.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self.name = HARBOR
        self.fallbacks = 0
        self._environment = environment
        self._session: TmuxSession | None = None
        self._session_name = ""

    async def open(self) -> None:
        """See :class:`Implementation`."""
        from harbor.agents.terminus_2.tmux_session import TmuxSession
        from harbor.models.trial.paths import EnvironmentPaths

        self._session_name = f"terminus-{uuid4().hex[:8]}"
        self._session = TmuxSession(
            session_name=self._session_name,
            environment=self._environment,
            logging_path=EnvironmentPaths.agent_dir / f"{self._session_name}.pane",
            local_asciinema_recording_path=None,
            remote_asciinema_recording_path=None,
            user=self._environment.default_user,
        )
        await self._session.start()
        await self._session.get_incremental_output()

    async def run(self, commands: Sequence[Command]) -> str:
        """See :class:`Implementation`."""
        assert self._session is not None, "run() before open()"
        for command in commands:
            await self._session.send_keys(command.keystrokes, block=False, min_timeout_sec=command.duration_sec)
        return await self._session.get_incremental_output()

    async def close(self) -> None:
        """See :class:`Implementation`."""
        if self._session is not None:
            await self._session.stop()
            # A tmux server exits after its last session, and a session that is opened meanwhile is lost.
            await self._environment.exec(
                f"tmux set-option -s exit-empty off; tmux kill-session -t {self._session_name}",
                user=self._environment.default_user,
            )
