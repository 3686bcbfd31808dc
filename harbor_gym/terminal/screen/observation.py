"""Make the policy's observation from the pane's content. Pure functions, no I/O.

Format 1, one observation per step, UTF-8, at most ``max_observation_bytes``:

    [still running after 3.0 s]        a header, only when there is something to report
    first line                         the text, lines right-trimmed, wraps joined
    [... 950 lines (8500 bytes) omitted ...]
    last line

In the shell the text is everything from the line where the cursor stood after the previous step; under a
full-screen program it is the visible screen. Headers: ``[exit code N]`` (never 0), ``[still running after S s]``,
``[waiting for input]``, ``[full-screen program]``, ``[session ended]``, ``[session ended, exit code N]``,
``[nothing was typed: why]``, each about the step's last command; and, each on a line of its own,
``[a line was cut: …]`` and ``[earlier lines lost: the scrollback holds N]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

OBSERVATION_FORMAT = 1
"""Version of the text format; it is increased when the same screen gives another text."""

_MARKER_RESERVE = len("[... 1234567890 lines (12345678901234 bytes) omitted ...]\n") + 2


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Text of which only the two ends may be known."""

    head: str
    """The beginning; the whole text when nothing is missing."""

    tail: str = ""
    """The end, when something is missing between it and ``head``."""

    missing_lines: int = 0
    """Whole lines between ``head`` and ``tail``."""

    missing_bytes: int = 0
    """UTF-8 bytes between ``head`` and ``tail``."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A finished observation."""

    text: str
    omitted_bytes: int
    """UTF-8 bytes of output that ``text`` leaves out; 0 when it is complete."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The cursor's position on the screen at the end of the previous observation."""

    above: tuple[str, ...] = ()
    """The lines above the cursor's line."""

    line: str = ""
    """The cursor's line."""

    row: int = 0
    """The cursor's row, counted in unjoined rows."""


def trim_lines(lines: Sequence[str]) -> list[str]:
    """Right-trim every line and drop the blank lines at the end."""
    trimmed = [line.rstrip() for line in lines]
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return trimmed


def place_anchor(visible: Sequence[str], *, cursor_row: int, rows: int) -> Anchor:
    """Return the anchor for a cursor on a screen whose wrapped rows have been joined into ``visible``.

    Rows under the cursor hold no wrapped line in a shell, so the cursor's line is counted from the bottom.
    """
    index = max(0, len(visible) - (rows - cursor_row))
    lines = [line.rstrip() for line in visible[: index + 1]]
    return Anchor(above=tuple(lines[:index]), line=lines[index] if index < len(lines) else "", row=cursor_row)


def find_news(lines: Sequence[str], anchor: Anchor, *, cursor_row: int, new_prompt: bool) -> int:
    """Return the index of the first line that the previous observation did not finish.

    ``lines`` begins at the top of the screen as it was at ``anchor``, and ``cursor_row`` counts rows from there. The
    position alone decides; unchanged lines above prove that it is still valid. If they changed, if the cursor is higher
    than before, or if a new prompt left everything as it was, the screen was rewritten and all of it is new.
    """
    count = len(anchor.above)
    if cursor_row < anchor.row or not _holds(anchor.above, lines):
        return 0
    line = lines[count].rstrip() if count < len(lines) else ""
    rewritten = new_prompt and cursor_row == anchor.row and line == anchor.line
    return 0 if rewritten else count


def has_overflowed(lines: Sequence[str], anchor: Anchor, *, history_lines: int, limit: int) -> bool:
    """Return whether the scrollback dropped lines since ``anchor``.

    tmux drops a tenth of a full scrollback at once. The scrollback is then nine tenths full, and no longer begins with
    the screen of the previous observation. Source: ``grid_collect_history`` in tmux's grid.c.
    """
    return history_lines >= limit - max(1, limit // 10) and not (
        anchor.line and _holds(anchor.above, lines) and lines[len(anchor.above)].startswith(anchor.line)
    )


def _holds(above: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether ``lines`` begins with the lines that were above the cursor."""
    return len(lines) > len(above) and all(line.rstrip() == old for line, old in zip(lines, above, strict=False))


def compose(header: str, excerpt: Excerpt, *, max_bytes: int) -> Observation:
    """Join header and text within ``max_bytes``.

    Text that does not fit is cut from the middle: half of the room is for the beginning, half for the end, in whole
    lines where a whole line fits. The header always stays.
    """
    prefix = f"{header}\n" if header else ""
    room = max_bytes - len(prefix.encode())
    whole = not excerpt.missing_lines and not excerpt.missing_bytes and not excerpt.tail
    if whole and len(excerpt.head.encode()) <= room:
        return Observation(text=(prefix + excerpt.head) if excerpt.head else header, omitted_bytes=0)
    half = max(0, room - _MARKER_RESERVE) // 2
    beginning = take_head(excerpt.head, half)
    if beginning and not beginning.endswith("\n") and excerpt.head.startswith("\n", len(beginning)):
        beginning += "\n"  # the marker begins a new line in any case
    ending = take_tail(excerpt.head[len(beginning) :] if whole else excerpt.tail, half)
    if whole:
        between = excerpt.head[len(beginning) : len(excerpt.head) - len(ending)]
        lines, size = between.count("\n"), len(between.encode())
    else:
        before, after = excerpt.head[len(beginning) :], excerpt.tail[: len(excerpt.tail) - len(ending)]
        lines = excerpt.missing_lines + before.count("\n") + after.count("\n")
        size = excerpt.missing_bytes + len(before.encode()) + len(after.encode())
    if beginning and not beginning.endswith("\n"):
        beginning += "\n"
    what = f"{lines} lines ({size} bytes)" if lines else f"{size} bytes"
    return Observation(text=f"{prefix}{beginning}[... {what} omitted ...]\n{ending}", omitted_bytes=size)


def take_head(text: str, max_bytes: int) -> str:
    """Return the longest beginning of ``text`` within ``max_bytes``: whole lines, or part of the first one."""
    cut = text.encode()[:max_bytes].decode(errors="ignore")
    if len(cut) == len(text):
        return text
    return cut[: end + 1] if (end := cut.rfind("\n")) >= 0 else cut


def take_tail(text: str, max_bytes: int) -> str:
    """Return the longest end of ``text`` within ``max_bytes``: whole lines, or part of the last one."""
    data = text.encode()
    cut = data[max(0, len(data) - max_bytes) :].decode(errors="ignore") if max_bytes else ""
    if len(cut) == len(text) or text[len(text) - len(cut) - 1] == "\n":
        return cut
    return cut[start + 1 :] if (start := cut.find("\n")) >= 0 else cut


def describe(wait: str | None, *, exit_code: int | None, waited_sec: float, typed_line: bool) -> str:
    """Return the header line on the last command; empty for a plain successful one."""
    match wait:
        case "ended":
            return "[session ended]" if exit_code is None else f"[session ended, exit code {exit_code}]"
        case "deadline":
            return f"[still running after {waited_sec:.1f} s]"
        case "untyped":
            return "[nothing was typed: the sandbox could not take the keystrokes; its disk may be full]"
        case "screen":
            return (
                "[nothing was typed: a full-screen program has the terminal, which would take the command for keys. "
                "Send one key: q, C-c or C-d to leave it, or C-z to stop it and then `kill -9 %%`]"
            )
        case "fullscreen":
            return "[full-screen program]"
        case "tty_read" if typed_line:
            return "[waiting for input]"
        case _:
            return f"[exit code {exit_code}]" if exit_code else ""
