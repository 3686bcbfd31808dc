"""The tmux terminal: it types turns and makes observations, over a transport to the session."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxError
from harbor_gym.terminal.screen import observation
from harbor_gym.terminal.screen.capture import Capture, Pane, excerpt_of
from harbor_gym.terminal.screen.keys import (
    MAX_KEYSTROKE_BYTES,
    MAX_LINE_BYTES,
    count_keystroke_bytes,
    encode_keys,
)
from harbor_gym.terminal.screen.screen import Screen, capture_screen
from harbor_gym.terminal.session import Leftovers, TerminalTurn
from harbor_gym.terminal.transports.step import Step, Transport, make_step
from harbor_gym.types import Command

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_WAITS = {"idle": "deadline", "untyped": "prompt", "screen": "fullscreen"}
"""The script's own reasons for the end of a wait → their names in a turn."""

_CUT = (
    f"[a line was cut: of each line, {MAX_LINE_BYTES} bytes arrived, as the program reads whole lines from the "
    "terminal. Write long text to a file in parts]"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """A tmux session in some sandbox at a turn boundary, without what this machine has open for it."""

    directory: str
    pids: tuple[str, str]
    """Of its shell and its server, in the sandbox."""

    user: str | int | None
    tools: str | None
    is_persistent: bool
    """Whether steps go by the persistent transport."""

    typed: int
    """Number of commands typed so far."""

    anchor: observation.Anchor
    mark: str
    run: tuple[int | None, str]
    ended: bool


class TmuxTerminal:
    """A tmux session in a sandbox. Made by :func:`harbor_gym.terminal.open_terminal`."""

    def __init__(
        self,
        environment: "BaseEnvironment",
        config: TerminalConfig,
        user: str | int | None,
        directory: str,
        pids: tuple[str, str],
        transport: Transport,
        tools: str | None = None,
    ) -> None:
        self._environment = environment
        self._config = config
        self._user = user
        self.directory = directory
        """The directory of the session's files in the sandbox, including tmux's socket."""

        self._pids = pids
        self._tools = tools
        self.transport = transport
        """The transport of steps to the session; the terminal closes it."""

        self._typed = 0
        self._anchor = observation.Anchor()
        self._mark = ""
        self._run: tuple[int | None, str] = (0, "0")
        self._ended = False
        self._closed = False

    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        """See :meth:`harbor_gym.terminal.Terminal.run`."""
        started = time.monotonic()
        if self._ended:
            return self._turn_without_session(commands, None, started)
        if (size := count_keystroke_bytes(commands)) > MAX_KEYSTROKE_BYTES:
            return self._refuse(commands, f"{size} bytes of keystrokes, at most {MAX_KEYSTROKE_BYTES}", started)
        try:
            keys = [encode_keys(command.keystrokes, self._config.keys) for command in commands]
        except ValueError as error:
            return self._refuse(commands, str(error), started)
        step = make_step(commands, keys, first_number=self._typed + 1, config=self._config)
        self._typed += len(commands)
        return self._read(commands, step, await self.transport.run_step(step), started)

    async def screen(self) -> Screen | None:
        """See :meth:`harbor_gym.terminal.Terminal.screen`."""
        return await capture_screen(self._environment, self.directory, user=self._user, tools=self._tools)

    @property
    def leftovers(self) -> Leftovers:
        """See :attr:`harbor_gym.terminal.Terminal.leftovers`."""
        return Leftovers(self._pids, self.directory)

    async def stand_still(self) -> int:
        """End this machine's processes in the sandbox until the next turn; return the id of the session's own root."""
        await self.transport.close_channel()
        return int(self._pids[1])

    def session(self, *, is_persistent: bool) -> Session:
        """Return the session as it stands; ``is_persistent``: whether its steps go by the persistent transport."""
        place = (self._typed, self._anchor, self._mark, self._run, self._ended)
        return Session(self.directory, self._pids, self._user, self._tools, is_persistent, *place)

    def go_on(self, session: Session) -> None:
        """Stand where the session stood: this terminal is the same one in a copy of the sandbox."""
        self._typed, self._anchor, self._mark = session.typed, session.anchor, session.mark
        self._run, self._ended = session.run, session.ended

    async def detach(self) -> None:
        """See :meth:`harbor_gym.terminal.Terminal.detach`."""
        await self.transport.close()

    async def close(self) -> None:
        """See :meth:`harbor_gym.terminal.Terminal.close`."""
        if self._closed:
            return
        was_ended = self._ended
        self._closed = self._ended = True
        try:
            output = await self.transport.finish("close", self.directory, *self._pids)
        except SandboxError as error:
            if not was_ended:
                raise
            # A policy that ended the session may have removed the shell that could clean up after it.
            logger.debug("nothing could be stopped after the session had ended: %s", error)
        else:
            logger.debug("terminal closed: %s", output.strip())

    def _read(self, commands: Sequence[Command], step: Step, capture: Capture, started: float) -> TerminalTurn:
        pane = capture.pane
        if pane is None:
            self._log_end(capture.loss)
            return self._turn_without_session(commands, None, started)
        new_prompt = capture.exit_code is not None and capture.mark != self._mark
        has_run = False
        if new_prompt:
            # An empty line, or one that the shell refused, keeps the exit code of the command before it.
            run = (capture.exit_code, capture.runs)
            has_run = run != self._run or not capture.runs
            self._mark, self._run = capture.mark, run
        self._ended = pane.dead or "ended" in capture.waits
        if self._ended:
            self._log_end(f"pane dead {pane.dead}, status {pane.dead_status}, signal {pane.dead_signal or None}")
        last = "ended" if self._ended else (capture.waits[-1] if capture.waits else None)
        exit_code = pane.dead_status if self._ended else (capture.exit_code if has_run and commands else None)
        header = observation.describe(
            last,
            exit_code=exit_code,
            waited_sec=step.inputs[-1].wait_sec if commands else 0.0,
            typed_line=bool(commands) and commands[-1].keystrokes.endswith("\n"),
        )
        start, overflowed = self._find_start(capture, pane, new_prompt=new_prompt)
        notes = [header] if header else []
        if any(capture.cut):
            notes.append(_CUT)
        if overflowed:
            notes.append(f"[earlier lines lost: the scrollback holds {self._config.history_lines}]")
        composed = observation.compose(
            "\n".join(notes), excerpt_of(capture, start=start), max_bytes=self._config.max_observation_bytes
        )
        waits = tuple(_WAITS.get(wait, wait) for wait in capture.waits)
        return TerminalTurn(
            text=composed.text,
            ended=self._ended,
            waits=(waits + ("ended",) * len(commands))[: len(commands)],
            exit_code=exit_code,
            duration_sec=time.monotonic() - started,
            omitted_bytes=composed.omitted_bytes,
            transport=self.transport.name,
            shown=tuple(observation.trim_lines(capture.lines if pane.alternate else capture.visible)),
        )

    def _find_start(self, capture: Capture, pane: Pane, *, new_prompt: bool) -> tuple[int, bool]:
        """Return the first new line, and whether lines before it are lost; move the anchor to the cursor."""
        if pane.alternate:
            return 0, False
        cursor_row = pane.history_lines + pane.cursor_row
        start = observation.find_news(capture.lines, self._anchor, cursor_row=cursor_row, new_prompt=new_prompt)
        overflowed = observation.has_overflowed(
            capture.lines, self._anchor, history_lines=pane.history_lines, limit=self._config.history_lines
        )
        self._anchor = observation.place_anchor(capture.visible, cursor_row=pane.cursor_row, rows=pane.rows)
        return 0 if overflowed else start, overflowed

    def _turn_without_session(self, commands: Sequence[Command], code: int | None, started: float) -> TerminalTurn:
        self._ended = True
        header = observation.describe("ended", exit_code=code, waited_sec=0.0, typed_line=False)
        return self._plain_turn(header, ("ended",) * len(commands), started, ended=True)

    def _log_end(self, how: str) -> None:
        logger.info("terminal session %s of sandbox %s ended: %s", self.directory, self._environment.session_id, how)

    def _refuse(self, commands: Sequence[Command], reason: str, started: float) -> TerminalTurn:
        return self._plain_turn(f"[nothing was typed: {reason}]", ("prompt",) * len(commands), started, ended=False)

    def _plain_turn(self, text: str, waits: tuple[str, ...], started: float, *, ended: bool) -> TerminalTurn:
        return TerminalTurn(text, ended, waits, None, time.monotonic() - started, 0, self.transport.name)
