"""The screens of a recording, turn by turn, drawn by pyte (extra ``render``)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import open_regular, why_unreadable
from harbor_gym.errors import MissingDependencyError, UsageError, printable

MARK = "\ufffd"
"""Replaces a character that can't be drawn, one column wide as the terminal has it."""

_MOST_COLUMNS, _MOST_ROWS = 1000, 500
"""Largest screen of an episode; see ``TerminalConfig``."""

_REMEDY = "name a .cast of a run's transcripts/"


@dataclass(frozen=True)
class Frame:
    """One turn of a recording."""

    at_sec: float
    """Seconds from the beginning, with pauses cut to the recording's limit."""

    label: str
    """The turn's marker: its number and keystrokes."""

    typed: str
    """The keystrokes."""

    lines: tuple[str, ...]
    """The screen after the turn; no line is wider than the terminal."""


@dataclass(frozen=True)
class Recording:
    """A recording's turns."""

    title: str
    columns: int
    rows: int
    frames: tuple[Frame, ...]


def read_recording(path: Path) -> Recording:
    """Read an asciicast v2 that this package wrote; an incomplete one is read up to its first broken line.

    Raises:
        MissingDependencyError: The extra ``render`` is not installed.
        UsageError: The file can't be read, or is not an asciicast v2.
    """
    try:
        import pyte
    except ModuleNotFoundError as exc:
        raise MissingDependencyError('pictures of a recording need pyte: pip install "harbor-gym[render]"') from exc
    try:
        place = path.resolve()  # the user may name a symbolic link
        with open_regular(place, place.parent) as file:
            header, *lines = file.read().decode().splitlines() or [""]
        settings = json.loads(header)
        columns, rows = int(settings["width"]), int(settings["height"])
        if settings["version"] != 2:
            raise ValueError(f"its version is {settings['version']}, not 2")
        if not (1 <= columns <= _MOST_COLUMNS and 1 <= rows <= _MOST_ROWS):
            raise ValueError(f"its screen has {columns} x {rows} characters; at most {_MOST_COLUMNS} x {_MOST_ROWS}")
        limit = float(settings.get("idle_time_limit") or "inf")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        raise UsageError(f"{path} is no recording (asciicast v2): {why_unreadable(exc)}: {_REMEDY}") from exc
    screen: Any = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    frames: list[Frame] = []
    at_sec = before = 0.0
    label = typed = ""
    for line in lines:
        try:
            second, kind, data = json.loads(line)
            second, data = float(second), str(data)
        except (ValueError, TypeError, OverflowError, RecursionError):
            break
        if kind == "m":
            frames += [Frame(at_sec, label, typed, _lines(screen))] if label else []
            at_sec, before = at_sec + min(max(0.0, second - before), limit), second
            label, typed = data, ""
        elif kind == "i":
            typed += data
        elif kind == "o":
            try:
                stream.feed(data)
            except Exception:  # of pyte, at sequences that no recording of ours has
                break
    frames += [Frame(at_sec, label, typed, _lines(screen))] if label else []
    return Recording(str(settings.get("title") or ""), columns, rows, tuple(frames))


def _lines(screen: Any) -> tuple[str, ...]:
    """Return the rows down to the last one that is not empty."""
    lines = [printable(line, mark=MARK).rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)
