"""The screen for a person: cells with their colours, and the cursor. Observations do not use it."""

import re
import secrets
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harbor_gym.errors import printable
from harbor_gym.terminal.sandbox_exec import run_in_sandbox
from harbor_gym.terminal.screen.capture import drop_dead_line
from harbor_gym.terminal.tools import path_prefix

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_CAPTURE_TIMEOUT_SEC = 15
_FIELDS = ("pane_width", "pane_height", "cursor_y", "cursor_x", "cursor_flag", "alternate_on", "pane_dead")
_SEQUENCE = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;:]*m|\x0f")
_STYLE = re.compile(r"(\x1b\[[0-9;:]*m|[\x0e\x0f])")
_COMMAND = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_LINE_DRAWING = re.compile(r"\x0e([^\x0f]*)")
_GRAPHICS = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
"""Source: DEC special graphics, as terminfo(5) lists it under acsc."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The pane's content at one moment."""

    columns: int
    rows: int
    lines: tuple[str, ...]
    """One per row, top first, with escape sequences for colours and styles; a style continues into the next line."""

    cursor_row: int
    """Counted from 0, within the screen."""

    cursor_column: int
    """Counted from 0, within the screen."""

    is_cursor_visible: bool
    is_full_screen: bool
    """Whether a program uses the terminal's alternate screen."""

    @property
    def text(self) -> str:
        """The screen without colours, right-trimmed, without empty lines at the end."""
        plain = (_SEQUENCE.sub("", _LINE_DRAWING.sub(_as_graphics, line)).rstrip() for line in self.lines)
        return "\n".join(plain).rstrip("\n")


async def capture_screen(
    environment: "BaseEnvironment", directory: str, *, user: str | int | None, tools: str | None
) -> Screen | None:
    """Capture a session's pane with one ``exec``, beside its other clients; None if the session is gone.

    Args:
        environment: The sandbox.
        directory: The session's directory in it.
        user: The session's user.
        tools: The directory of the programs that :func:`~harbor_gym.terminal.tools.ensure_tmux` installed, if any.

    Raises:
        SandboxLostError: The sandbox is gone.
        SandboxTimeoutError: The sandbox did not answer.
    """
    nonce = f"@{secrets.token_hex(8)}"
    fields = " ".join(f"#{{{field}}}" for field in _FIELDS)
    display = ["display-message", "-p", "-t", "%0", f"{nonce} {fields}"]
    words = ["tmux", "-u", "-S", f"{directory}/socket", *display, ";", "capture-pane", "-e", "-p", "-t", "%0"]
    result = await run_in_sandbox(
        environment,
        f"{path_prefix(tools)}{shlex.join(words)}; true",
        timeout_sec=_CAPTURE_TIMEOUT_SEC,
        user=user,
        purpose="show the terminal's screen",
        cwd="/",
    )
    return parse_screen(result.stdout or "", nonce)


def parse_screen(answer: str, nonce: str) -> Screen | None:
    """Read tmux's output: a line of numbers after ``nonce``, then the rows."""
    _, found, rest = answer.partition(f"{nonce} ")
    header, _, body = rest.partition("\n")
    numbers = [int(number) for number in header.split() if number.isdigit()]
    if not found or len(numbers) != len(_FIELDS):
        return None
    columns, rows, cursor_row, cursor_column, cursor_flag, alternate, is_dead = numbers
    lines = [_only_styled(line) for line in body.split("\n")[:rows]]
    if is_dead:
        lines = drop_dead_line(lines)
    return Screen(
        columns=columns,
        rows=rows,
        lines=(*lines, *[""] * (rows - len(lines))),
        cursor_row=min(cursor_row, rows - 1),
        cursor_column=min(cursor_column, columns - 1),  # after a full line tmux counts one further
        is_cursor_visible=cursor_flag == 1,
        is_full_screen=alternate == 1,
    )


def _only_styled(line: str) -> str:
    """Return a line without control sequences except styles: the policy may have replaced the sandbox's tmux."""
    parts = _STYLE.split(_COMMAND.sub("", line))
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))


def _as_graphics(match: re.Match[str]) -> str:
    return match[1].translate(_GRAPHICS)
