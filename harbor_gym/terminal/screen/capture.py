"""Read the step script's answer into a value. Pure functions, no I/O."""

import re
from dataclasses import dataclass

from harbor_gym.terminal.screen.observation import Excerpt, trim_lines

_PROMPT = re.compile(r"\d+:\d+:(\d{1,3})(?::(\d*))?", re.ASCII)
_MAX_EXIT_CODE = 255


class CaptureError(ValueError):
    """The script's answer is missing or incomplete."""


@dataclass(frozen=True, slots=True)
class Pane:
    """The pane as tmux describes it."""

    dead: bool
    dead_status: int | None
    dead_signal: str
    """The signal that ended the shell; empty where none did, and before tmux 3.3."""

    alternate: bool
    cursor_row: int
    history_lines: int
    """Lines that scrolled off the screen since the previous capture."""

    rows: int


@dataclass(frozen=True, slots=True)
class Capture:
    """One answer of the step script."""

    waits: tuple[str, ...]
    """Per command, as in ``TerminalTurn.waits``; also ``idle`` for a deadline that passed at the shell's prompt,
    ``untyped`` for a command that could not be typed, and those after it, and ``screen`` for the text of a tool's
    command that was not typed into a full-screen program."""

    cut: tuple[bool, ...]
    """Per command, whether a line was longer than the terminal keeps for the program that read it."""

    mark: str
    """The shell's latest mark when the screen was captured: ``<pid>:<count>:<exit code>:<runs>``, with a code only at a
    prompt. The policy may have forged it."""

    pane: Pane | None
    """None when the tmux server or its pane is gone."""

    lines: tuple[str, ...]
    """The text from the top of the previous screen down, wraps joined; only its beginning when ``tail`` is set."""

    tail: tuple[str, ...] | None
    """The end of the text when the middle was left in the sandbox."""

    missing_lines: int
    missing_bytes: int

    visible: tuple[str, ...]
    """The current screen, wraps joined; empty under a full-screen program."""

    loss: str = ""
    """If ``pane`` is None, the script's findings, for the log."""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last command, if the shell is at its prompt and its mark is valid."""
        match = _PROMPT.fullmatch(self.mark)
        return int(match[1]) if match and int(match[1]) <= _MAX_EXIT_CODE else None

    @property
    def runs(self) -> str:
        """The number of commands that the shell has run; empty where it doesn't count them (bash before 4.4)."""
        match = _PROMPT.fullmatch(self.mark)
        return match[2] or "" if match else ""


NO_SESSION = Capture((), (), "0:0:", None, (), None, 0, 0, (), loss="no shell can be started")
"""The capture of a session that does not answer any more."""


def parse_capture(answer: str, nonce: str) -> Capture:
    """Read the step script's standard output.

    Raises:
        CaptureError: The answer is cut or damaged: the script did not run to its end.
    """
    try:
        return _parse(answer, nonce)
    except (ValueError, IndexError) as error:
        raise CaptureError(str(error)) from error


def _parse(answer: str, nonce: str) -> Capture:
    lines = answer.split("\n")
    start = _find(lines, f"{nonce} step ", 0)
    end = _find(lines, f"{nonce} end", start)
    _, _, waits, mark = lines[start].split(" ")
    marked = tuple(wait for wait in waits.split(",") if wait)
    known, cut_lines = tuple(wait.removesuffix("!") for wait in marked), tuple(wait.endswith("!") for wait in marked)
    if lines[start + 1].startswith(f"{nonce} gone "):
        return Capture(
            known, cut_lines, mark, None, (), None, 0, 0, (), loss=lines[start + 1].removeprefix(f"{nonce} gone ")
        )
    pane = _parse_pane(lines[start + 1])
    body = lines[start + 2 : end]
    if f"\n{nonce} cut " not in answer:
        text, visible = _split_visible(body, nonce)
        text = _trim_dead(text, pane)
        return Capture(known, cut_lines, mark, pane, tuple(text), None, 0, 0, tuple(visible))
    cut = _find(body, f"{nonce} cut ", 0)
    total_lines, total_bytes = map(int, body[cut].split(" ")[2:])
    head = _drop_partial(body[:cut], -1)
    tail, visible = _split_visible(_drop_partial(body[cut + 1 :], 0), nonce)
    tail = _trim_dead(tail, pane)
    shown = [*head, *tail]
    # The counted lines include the pane's description, a separator, and a second copy of the visible lines.
    return Capture(
        known,
        cut_lines,
        mark,
        pane,
        tuple(head),
        tuple(tail),
        max(0, total_lines - 2 - len(visible) - len(shown)),
        max(0, total_bytes - _size([lines[start + 1], *shown, *visible]) - len(f"{nonce} visible\n")),
        tuple(visible),
    )


def excerpt_of(capture: Capture, *, start: int) -> Excerpt:
    """Return the text of ``capture`` from line ``start`` on, trimmed."""
    if capture.tail is None:
        return Excerpt("\n".join(trim_lines(capture.lines[start:])))
    head = [line.rstrip() for line in capture.lines[start:]]
    return Excerpt(
        head="\n".join(head) + "\n",
        tail="\n".join(trim_lines(capture.tail)),
        missing_lines=capture.missing_lines,
        missing_bytes=capture.missing_bytes,
    )


def _find(lines: list[str], prefix: str, start: int) -> int:
    for index in range(start, len(lines)):
        if lines[index].startswith(prefix):
            return index
    raise ValueError(f"expected a line {prefix!r} in the sandbox's answer, found {lines[-5:]!r}")


def _parse_pane(line: str) -> Pane:
    before, _, after = line.partition(" . ")
    _, _, dead, *status = before.split(" ")
    alternate, cursor_row, history, rows = map(int, after.split(" "))
    code, signal = (*status, "", "")[:2]
    return Pane(dead == "1", int(code) if code else None, signal, bool(alternate), cursor_row, history, rows)


def _split_visible(lines: list[str], nonce: str) -> tuple[list[str], list[str]]:
    separator = f"{nonce} visible"
    if separator not in lines:
        return lines, []
    index = lines.index(separator)
    return lines[:index], lines[index + 1 :]


def _drop_partial(lines: list[str], position: int) -> list[str]:
    """Drop the line that a byte cut went through, unless it is the only one."""
    if len(lines) < 2:
        return [line.replace("\N{REPLACEMENT CHARACTER}", "") for line in lines]
    return lines[:-1] if position == -1 else lines[1:]


def _trim_dead(lines: list[str], pane: Pane) -> list[str]:
    return drop_dead_line(lines) if pane.dead else lines


def drop_dead_line(lines: list[str]) -> list[str]:
    """Drop the line that tmux itself writes into a dead pane."""
    trimmed = trim_lines(lines)
    return trimmed[:-1] if trimmed and trimmed[-1].startswith("Pane is dead") else trimmed


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
