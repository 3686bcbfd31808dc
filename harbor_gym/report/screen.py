"""What a recording's screens showed, turn by turn: the part of a terminal that our recordings use.

They write plain lines, carriage returns, new lines and a cleared screen; everything else is skipped, as the page's
player skips it.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from harbor_gym.errors import UsageError

_TAB = 8
_PIECE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_a-z]"
    r"|[\x00-\x1f\x7f-\x9f]|[^\x00-\x1f\x7f-\x9f]+"
)
"""A control sequence, a control character, or text."""


@dataclass(frozen=True)
class Frame:
    """One turn of a recording."""

    at_sec: float
    """When, with pauses cut to the recording's limit."""

    label: str
    """The turn's marker: its number and what was typed."""

    typed: str
    """The keystrokes."""

    lines: tuple[str, ...]
    """The screen after it; no line is wider than the terminal."""


@dataclass(frozen=True)
class Recording:
    """A recording's turns."""

    title: str
    columns: int
    rows: int
    frames: tuple[Frame, ...]


def read_recording(path: Path) -> Recording:
    """Read an asciicast v2 of ours; one that is broken off has the turns before that.

    Raises:
        UsageError: The file can't be read, or is no recording of that format.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        settings = json.loads(header)
        columns, rows = int(settings["width"]), int(settings["height"])
        if settings["version"] != 2:
            raise ValueError(f"its version is {settings['version']}, not 2")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{path} is no recording (asciicast v2): {exc}") from exc
    screen = _Screen(columns, rows)
    limit = float(settings.get("idle_time_limit") or "inf")
    frames: list[Frame] = []
    at_sec = before = 0.0
    label = typed = ""
    for line in lines:
        try:
            second, kind, data = json.loads(line)
            second, data = float(second), str(data)
        except (ValueError, TypeError):
            break
        if kind == "m":
            frames += [Frame(at_sec, label, typed, screen.lines())] if label else []
            at_sec, before = at_sec + min(max(0.0, second - before), limit), second
            label, typed = data, ""
        elif kind == "i":
            typed += data
        elif kind == "o":
            screen.write(data)
    frames += [Frame(at_sec, label, typed, screen.lines())] if label else []
    return Recording(str(settings.get("title", "")), columns, rows, tuple(frames))


class _Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._clear()

    def lines(self) -> tuple[str, ...]:
        """Return the rows down to the last one that was written."""
        return tuple("".join(row).rstrip() for row in self._cells)

    def write(self, text: str) -> None:
        for match in _PIECE.finditer(text):
            self._put(match[0])

    def _clear(self) -> None:
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0

    def _put(self, piece: str) -> None:
        if piece == "\n":
            self._new_line()
        elif piece == "\r":
            self._column = 0
        elif piece == "\t":
            self._column = min(self._column - self._column % _TAB + _TAB, self._columns - 1)
        elif piece == "\x1b[2J":
            self._clear()
        elif piece == "\x1b[H":
            self._row = self._column = 0
        elif piece[0] >= " " and not "\x7f" <= piece[0] <= "\x9f":
            for character in piece:
                self._print(character)

    def _print(self, character: str) -> None:
        width = _width(character)
        if not width:
            return
        if self._column + width > self._columns:
            self._column = 0
            self._new_line()
        row = self._cells[self._row]
        row += [" "] * (self._column + width - len(row))
        row[self._column : self._column + width] = [character, *[""] * (width - 1)]
        self._column += width

    def _new_line(self) -> None:
        if self._row == self._rows - 1:
            del self._cells[0]
        else:
            self._row += 1
        if self._row == len(self._cells):
            self._cells.append([])


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
