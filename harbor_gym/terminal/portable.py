"""The portable transport: one ``exec`` per step, on any Harbor environment that has bash and tmux."""

import base64
import functools
import logging
import math
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import HarborGymError, SandboxError, SandboxLostError, TerminalStartError
from harbor_gym.terminal import frame as frames
from harbor_gym.terminal import observation
from harbor_gym.terminal.keys import (
    MAX_INLINE_BYTES,
    MAX_KEYSTROKE_BYTES,
    Keys,
    count_keystroke_bytes,
    encode_keystrokes,
)
from harbor_gym.terminal.sandbox_exec import run_in_sandbox
from harbor_gym.terminal.session import Terminal, TerminalTurn
from harbor_gym.types import Command

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_SCRIPTS = Path(__file__).parent / "sandbox"
_OPEN_TIMEOUT_SEC = 60
_CLOSE_TIMEOUT_SEC = 30
_MARGIN_SEC = 30
"""Time for everything in a step but the waits themselves, on an overloaded machine."""

_MAX_COMMAND_BYTES = 100_000
"""Linux takes at most 128 KiB in one argument; longer keystrokes are sent ahead in pieces."""

_NO_SHELL_CODES = (126, 127)
"""A shell that was there when the session opened cannot be run any more: the policy removed it."""

logger = logging.getLogger(__name__)


class PortableTerminal:
    """A tmux session driven by one script run per step. Made by :func:`open_terminal`."""

    def __init__(
        self,
        environment: "BaseEnvironment",
        config: TerminalConfig,
        user: str | int | None,
        directory: str,
        pids: tuple[str, str],
    ) -> None:
        self._environment = environment
        self._config = config
        self._user = user
        self._directory = directory
        self._pids = pids
        self._anchor = observation.Anchor()
        self._mark = ""
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
            keys = [encode_keystrokes(command.keystrokes) for command in commands]
        except ValueError as error:
            return self._refuse(commands, str(error), started)
        frame = await self._step(commands, keys)
        return self._read(commands, frame, started)

    async def close(self) -> None:
        """See :meth:`harbor_gym.terminal.Terminal.close`."""
        if self._closed:
            return
        was_ended = self._ended
        self._closed = self._ended = True
        try:
            result = await run_in_sandbox(
                self._environment,
                shlex.join(["bash", "-c", _read_script("close"), "bash", self._directory, *self._pids]),
                timeout_sec=_CLOSE_TIMEOUT_SEC,
                user=self._user,
                purpose="stop the terminal session",
            )
        except SandboxError as error:
            if not was_ended:
                raise
            # Whoever ended the session may have removed the shell that could clean up after it.
            logger.debug("nothing could be stopped after the session had ended: %s", error)
        else:
            logger.debug("terminal closed: %s", (result.stdout or "").strip())

    async def _step(self, commands: Sequence[Command], keys: Sequence[Keys]) -> frames.Frame:
        nonce = f"@{secrets.token_hex(8)}"
        arguments: list[str] = []
        room = _MAX_COMMAND_BYTES
        for command, typed in zip(commands, keys, strict=True):
            kind, payload = _encode_payload(typed)
            if len(payload) > room:
                kind, payload = "file", await self._send_ahead(payload)
            room -= len(payload)
            arguments += [self._wait_ms(command), kind, payload]
        script = f"{self._directory}/step"
        call = shlex.join(["bash", script, nonce, str(self._frame_bytes), *arguments])
        budget = sum(int(wait.partition("/")[0]) for wait in arguments[::3]) / 1000
        result = await run_in_sandbox(
            self._environment,
            f"[ ! -r {script} ] || exec {call}; printf '%s step , 0:0:0\\n%s gone\\n%s end\\n' {nonce} {nonce} {nonce}",
            timeout_sec=budget + _MARGIN_SEC,
            user=self._user,
            purpose="take a terminal step",
        )
        try:
            return frames.parse_frame(result.stdout or "", nonce)
        except frames.FrameError as error:
            if result.return_code in _NO_SHELL_CODES:
                return frames.NO_SESSION
            if commands:
                # The script was killed half-way (`kill -9 -1` does it): look once, type nothing again.
                return await self._step([], [])
            raise SandboxLostError(
                f"Sandbox {self._environment.session_id!r} gave no usable answer to a terminal step "
                f"(return code {result.return_code}): {error}. Run the episode again in a fresh sandbox."
            ) from error

    async def _send_ahead(self, payload: str) -> str:
        """Bring a long payload into the sandbox in pieces; return the name of its file.

        ``upload_file`` would be one call, but it may miss file systems that are mounted inside the sandbox, and the
        file would not belong to the session's user.
        """
        name = f"keys-{secrets.token_hex(4)}"
        for start in range(0, len(payload), _MAX_COMMAND_BYTES):
            await run_in_sandbox(
                self._environment,
                f"printf %s {payload[start : start + _MAX_COMMAND_BYTES]} >>{self._directory}/{name}",
                timeout_sec=_MARGIN_SEC,
                user=self._user,
                purpose="take keystrokes",
            )
        return name

    def _wait_ms(self, command: Command) -> str:
        config = self._config
        given = command.duration_sec
        given = 1.0 if math.isnan(given) else min(max(given, 0.0), config.max_wait_sec)
        busy = min(max(given, config.min_wait_sec), config.max_wait_sec)
        return f"{round(busy * 1000)}/{round(given * 1000)}"

    @property
    def _frame_bytes(self) -> int:
        # The ends of the text must survive the cut beside a screen of known lines, at four bytes a cell.
        return 2 * self._config.max_observation_bytes + 4 * self._config.rows * self._config.columns

    def _read(self, commands: Sequence[Command], frame: frames.Frame, started: float) -> TerminalTurn:
        pane = frame.pane
        if pane is None:
            return self._turn_without_session(commands, None, started)
        new_prompt, self._mark = frame.mark != self._mark, frame.mark
        self._ended = pane.dead or "ended" in frame.waits
        last = "ended" if self._ended else (frame.waits[-1] if frame.waits else None)
        exit_code = pane.dead_status if self._ended else (frame.exit_code if new_prompt and commands else None)
        header = observation.describe(
            last,
            exit_code=exit_code,
            waited_sec=int(self._wait_ms(commands[-1]).partition("/")[0]) / 1000 if commands else 0.0,
            typed_line=bool(commands) and commands[-1].keystrokes.endswith("\n"),
        )
        start, overflowed = self._find_start(frame, pane, new_prompt=new_prompt)
        if overflowed:
            lost = f"[earlier lines lost: the scrollback holds {self._config.history_lines}]"
            header = f"{header}\n{lost}" if header else lost
        composed = observation.compose(
            header, frames.excerpt_of(frame, start=start), max_bytes=self._config.max_observation_bytes
        )
        waits = tuple("deadline" if wait == "idle" else wait for wait in frame.waits)
        return TerminalTurn(
            text=composed.text,
            ended=self._ended,
            waits=(waits + ("ended",) * len(commands))[: len(commands)],
            exit_code=exit_code,
            duration_sec=time.monotonic() - started,
            omitted_bytes=composed.omitted_bytes,
            transport="portable",
        )

    def _find_start(self, frame: frames.Frame, pane: frames.Pane, *, new_prompt: bool) -> tuple[int, bool]:
        """Return the first new line, and whether lines before it are lost; move the anchor to the cursor."""
        if pane.alternate:
            return 0, False
        cursor_row = pane.history_lines + pane.cursor_row
        start = observation.find_news(frame.lines, self._anchor, cursor_row=cursor_row, new_prompt=new_prompt)
        overflowed = observation.has_overflowed(
            frame.lines, self._anchor, history_lines=pane.history_lines, limit=self._config.history_lines
        )
        self._anchor = observation.place_anchor(frame.visible, cursor_row=pane.cursor_row, rows=pane.rows)
        return 0 if overflowed else start, overflowed

    def _turn_without_session(self, commands: Sequence[Command], code: int | None, started: float) -> TerminalTurn:
        self._ended = True
        header = observation.describe("ended", exit_code=code, waited_sec=0.0, typed_line=False)
        return self._plain_turn(header, ("ended",) * len(commands), started, ended=True)

    def _refuse(self, commands: Sequence[Command], reason: str, started: float) -> TerminalTurn:
        return self._plain_turn(f"[nothing was typed: {reason}]", ("prompt",) * len(commands), started, ended=False)

    def _plain_turn(self, text: str, waits: tuple[str, ...], started: float, *, ended: bool) -> TerminalTurn:
        return TerminalTurn(text, ended, waits, None, time.monotonic() - started, 0, "portable")


async def open_terminal(
    environment: "BaseEnvironment", config: TerminalConfig, *, user: str | int | None = None
) -> Terminal:
    """Start an interactive bash in a tmux pane inside ``environment``, in the environment's working directory.

    ``user`` None is the environment's default user at this moment; the session keeps it. The caller closes the
    terminal; a terminal that failed to open leaves nothing behind.

    Raises:
        TerminalStartError: the image has no bash or no usable tmux, or the shell ended at once.
        SandboxLostError: the sandbox is gone.
        SandboxTimeoutError: the sandbox did not answer.
    """
    user = user if user is not None else environment.default_user
    nonce = f"@{secrets.token_hex(8)}"
    arguments = [_read_script("step"), _read_script("rc"), config.columns, config.rows, config.history_lines]
    call = shlex.join(["bash", "-c", _read_script("open"), "bash", nonce, *map(str, arguments)])
    result = await run_in_sandbox(
        environment,
        f"command -v bash >/dev/null 2>&1 || {{ echo '{nonce} fail no-bash'; exit 0; }}; exec {call}",
        timeout_sec=_OPEN_TIMEOUT_SEC,
        user=user,
        purpose="open a terminal session",
    )
    answer = next((line for line in (result.stdout or "").split("\n") if line.startswith(nonce)), "")
    match answer.split(" "):
        case [_, "ok", directory, shell, server]:
            return PortableTerminal(environment, config, user, directory, (shell, server))
        case [_, "fail", reason, *details]:
            raise _start_error(environment, reason, " ".join(details), result.stdout or "")
        case _:
            output = f"{result.stdout or ''}{result.stderr or ''}".strip()
            raise _start_error(environment, "no-answer", f"return code {result.return_code}: {output[-500:]}", "")


@functools.cache
def _read_script(name: str) -> str:
    return (_SCRIPTS / f"{name}.bash").read_text()


def _encode_payload(keys: Keys) -> tuple[str, str]:
    """Return kind and payload for the step script, free of anything a shell could read."""
    if keys.is_empty:
        return "none", "-"
    if keys.name is not None:
        return "keys", keys.name
    if len(keys.data) <= MAX_INLINE_BYTES:
        return "hex", keys.data.hex(" ")
    return "base64", base64.b64encode(keys.data).decode()


def _start_error(environment: "BaseEnvironment", reason: str, details: str, output: str) -> HarborGymError:
    install = "Install it in the task's environment/Dockerfile (Debian: `RUN apt-get update && apt-get install -y {}`)."
    match reason:
        case "no-tmux" | "no-bash":
            program = reason.removeprefix("no-")
            what = f"the image has no {program}. {install.format(program)}"
        case "old-tmux":
            what = f"the image has {details}, and at least tmux 3.0 is needed. {install.format('tmux')}"
        case "no-directory":
            what = f"no directory for the session could be made in /run, /dev/shm, /var/tmp, $HOME or /tmp. {details}"
        case "shell-ended":
            what = f"bash ended at once; its ~/.bashrc may exit. Last output: {output.strip()[-500:]}"
        case _:
            what = f"{reason}: {details} {output.strip()[-500:]}".strip()
    return TerminalStartError(f"No terminal in sandbox {environment.session_id!r}: {what}")
