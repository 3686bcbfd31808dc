"""Recordings of episodes for asciinema's players, made of the terminal's turns.

Recording types nothing and waits for nothing: each turn appends a few lines to a file. The format is asciicast v2,
which every asciinema player and converter reads: a header, then one JSON array per event. Each turn has a marker
(``m``, to jump to), the keystrokes (``i``) and the change of the screen (``o``): first the new output as the policy
read it, then, if that leads to another screen than the terminal's, the terminal's screen.

So a player shows at every marker exactly the text that was on the screen, and a flood costs no more than its
observation. Changes between two turns, colours and the cursor are not recorded: capturing the pane's raw bytes would
take longer than the step itself.
Source: https://docs.asciinema.org/manual/asciicast/v2/
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

CAST_VERSION = 2
"""Version of the asciicast format."""

_IDLE_LIMIT_SEC = 2.0
"""Players shorten longer pauses to this: a policy may think for minutes."""

_LABEL_CHARS = 60
_CLEAR = "\x1b[H\x1b[2J"
_HEADER = re.compile(
    r"\[(exit code -?\d+|still running after [\d.]+ s|waiting for input|full-screen program|session ended(, exit code "
    r"-?\d+)?|earlier lines lost: .*|nothing was typed: .*)\]"
)
"""The header lines of an observation. Source: format 1 in harbor_gym/terminal/screen/observation.py."""

_FULL_SCREEN = "[full-screen program]"
_UNFINISHED = ("[still running", "[waiting for input")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording so far."""

    cast: str
    """The file's content."""

    screen: tuple[str, ...]
    is_full_screen: bool
    is_unfinished: bool
    last_sec: float


class CastRecorder:
    """Record one episode into a file that can be played at any time, also while it grows.

    Each turn is one write, so a killed process leaves a valid recording of the earlier turns. If the disk fills up, the
    recording ends with a warning, and the episode goes on.

    Args:
        path: The file to write; an existing one is replaced. Its directory is made.
        columns: Width of the terminal.
        rows: Height of the terminal.
        title: The recording's name in players.
        after: Go on with this recording of a terminal of the same size.

    Raises:
        OSError: The file can't be made.
    """

    def __init__(self, path: Path, *, columns: int, rows: int, title: str, after: Recording | None = None) -> None:
        self._path = path
        self._rows = rows
        self._screen: list[str] = []
        self._is_full_screen = self._is_unfinished = False
        self._last_sec = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        if after is not None:
            self._screen, self._last_sec = list(after.screen), after.last_sec
            self._is_full_screen, self._is_unfinished = after.is_full_screen, after.is_unfinished
            self._write(after.cast)
            return
        self._append(
            {
                "version": CAST_VERSION,
                "width": columns,
                "height": rows,
                "timestamp": int(time.time()),
                "idle_time_limit": _IDLE_LIMIT_SEC,
                "title": title,
                "env": {"SHELL": "/bin/bash", "TERM": "screen-256color"},
            }
        )

    def turn(self, turn_index: int, keystrokes: str, text: str, at_sec: float, *, shown: Sequence[str] = ()) -> None:
        """Append one turn. After :meth:`close`, or once the disk was full, do nothing.

        Args:
            turn_index: Number of the turn; 0 is the screen after the reset.
            keystrokes: All keystrokes of the turn, as the policy wrote them.
            text: The observation. Its header goes into the marker's label, the rest onto the screen.
            at_sec: Seconds since the recording began; a time before the last turn's is replaced by that.
            shown: The whole screen, wrapped rows joined, as ``TerminalTurn.shown``; empty if it is unknown.
        """
        header, lines = _split(text)
        screen = [_clean(line) for line in shown]
        if math.isfinite(at_sec) and at_sec > self._last_sec:
            self._last_sec = round(at_sec, 6)
        at_sec = self._last_sec
        label = " ".join([f"{turn_index}:", _label(keystrokes), *header]).strip()
        events: list[Sequence[float | str]] = [(at_sec, "m", label)]
        if keystrokes:
            events.append((at_sec, "i", _encodable(keystrokes)))
        if change := self._paint(header, lines, is_known=bool(screen)) + self._correct(header, screen):
            events.append((at_sec, "o", change))
        self._append(*events)

    def so_far(self) -> Recording:
        """Return what is recorded, with which another recorder can go on.

        Raises:
            OSError: The file can't be read.
        """
        cast = self._path.read_text(encoding="utf-8")
        return Recording(cast, tuple(self._screen), self._is_full_screen, self._is_unfinished, self._last_sec)

    def close(self) -> None:
        """Close the file. Idempotent; the recording is complete without it, too."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _paint(self, header: Sequence[str], lines: list[str], *, is_known: bool) -> str:
        """Return the output that changes a player's screen from the previous turn's to this one's."""
        if _FULL_SCREEN in header:
            self._is_full_screen = True
            return "" if is_known else _CLEAR + "\r\n".join(lines[-self._rows :])
        known = "\r\n".join(self._screen)
        returns, self._is_full_screen = self._is_full_screen, False
        prefix = _CLEAR + known if returns else ""
        if not lines:
            return prefix
        last = self._screen[-1] if self._screen else ""
        text = "\r\n".join(lines)
        if lines[0].startswith(last):  # The observation begins with the line that the cursor was on.
            change = text[len(last) :]
            self._screen = self._screen[:-1] + lines
        elif self._is_unfinished:  # The cursor was on an empty line of its own.
            change = f"\r\n{text}"
            self._screen += lines
        else:  # The program has rewritten the screen: the observation is all of it.
            prefix, change = "", _CLEAR + text
            self._screen = lines
        self._screen = self._screen[-self._rows :]
        self._is_unfinished = any(line.startswith(_UNFINISHED) for line in header)
        return prefix + change

    def _correct(self, header: Sequence[str], shown: list[str]) -> str:
        """Return the output that changes a player's screen to ``shown``; empty if it already shows that."""
        if not shown:
            return ""
        repaint = _CLEAR + "\r\n".join(shown)
        if _FULL_SCREEN in header or self._is_full_screen:
            return repaint
        # The player may have more lines; if the last ones fill the screen, it shows the same.
        fills = len(shown) >= self._rows and self._screen[-len(shown) :] == shown
        if self._screen == shown or fills:
            return ""
        self._screen = shown
        return repaint

    def _append(self, *values: object) -> None:
        self._write("".join(f"{json.dumps(value, separators=(',', ':'), allow_nan=False)}\n" for value in values))

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        data = text.encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
                raise OSError(f"only {written} of {len(data)} bytes could be written")
        except OSError as error:
            logger.warning("the recording %s ends early: %s", self._path, error)
            self.close()


def _split(text: str) -> tuple[list[str], list[str]]:
    """Return the header lines of an observation and the rest, without anything that could control a terminal."""
    lines = [_clean(line) for line in text.split("\n")] if text else []
    count = next((i for i, line in enumerate(lines) if not _HEADER.fullmatch(line)), len(lines))
    return lines[:count], lines[count:]


def _clean(line: str) -> str:
    return _CONTROL.sub("", _encodable(line))


def _label(keystrokes: str) -> str:
    """Return the keystrokes on one short line, for a player's time line."""
    line = _CONTROL.sub("", " ".join(_encodable(keystrokes).split()))
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 can't encode."""
    return text.encode(errors="replace").decode()
