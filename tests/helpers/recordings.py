"""Recordings, read and played as asciinema's players do."""

import json
from pathlib import Path
from typing import Any

import pyte


def read(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """Parse a recording as players do: a header, then one event per line."""
    header, *events = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return header, events


def replay(path: Path) -> list[str]:
    """Return the screen at the recording's end, right-trimmed, without blank lines at the end."""
    header, events = read(path)
    screen = pyte.Screen(header["width"], header["height"])
    stream = pyte.Stream(screen)
    for _, kind, data in events:
        if kind == "o":
            stream.feed(data)
    return "\n".join(line.rstrip() for line in screen.display).rstrip("\n").split("\n")
