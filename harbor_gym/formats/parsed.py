"""The parsed form of every action format, and the rules that hold for all of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harbor_gym.formats.tool_text import ToolCall
from harbor_gym.types import Command

MAX_DURATION_SEC = 60.0
"""Ceiling on a command's duration in seconds. Source: Terminus-2 clamps to it, after its parser."""

MAX_MESSAGE_CHARS = 16_000_000
"""Longer messages are refused unread."""

_MAX_FEEDBACK_CHARS = 2_000
"""A message can have thousands of errors; the policy is shown this many characters."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """One action, ready to be executed."""

    commands: tuple[Command, ...]
    task_complete: bool
    error: str | None
    """Why the action could not be read; then nothing is executed. Can be shown to the model."""

    warning: str | None
    """Faults that were tolerated. Can be shown to the model."""

    analysis: str
    plan: str
    calls: tuple[tuple[int, ToolCall], ...] = ()
    """Calls of tools that type nothing, each with the number of commands before it."""

    @property
    def parts(self) -> Iterator[tuple[Command, ...] | ToolCall]:
        """The action's parts in order: commands that are typed together, and calls of other tools."""
        done = 0
        for before, call in self.calls:
            if before > done:
                yield self.commands[done:before]
            done = before
            yield call
        if done < len(self.commands) or not self.calls:
            yield self.commands[done:]


def success(
    commands: tuple[Command, ...],
    *,
    calls: tuple[tuple[int, ToolCall], ...] = (),
    task_complete: bool = False,
    warning: str = "",
    analysis: object = "",
    plan: object = "",
) -> ParsedAction:
    """Return an action that was read."""
    return ParsedAction(
        commands, task_complete, None, _feedback(warning) or None, plain_text(analysis), plain_text(plan), calls
    )


def failure(error: str, warning: str = "", analysis: object = "", plan: object = "") -> ParsedAction:
    """Return an action that could not be read."""
    return ParsedAction((), False, _feedback(error), _feedback(warning) or None, plain_text(analysis), plain_text(plan))


def check_commands(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[Command, ...], str | None]:
    """Return the commands and None, or no commands and the fault of the first invalid one."""
    commands: list[Command] = []
    for number, (keystrokes, duration) in enumerate(pairs, start=1):
        if "\0" in keystrokes:
            return (), f"Command {number} 'keystrokes' contains a NUL character, which cannot be typed"
        if any("\ud800" <= char <= "\udfff" for char in keystrokes):
            return (), f"Command {number} 'keystrokes' contains half of a surrogate pair, which is not a character"
        commands.append(Command(keystrokes, _clamp(duration)))
    return tuple(commands), None


def as_list(warnings: Iterable[str]) -> str:
    """Return warnings as Harbor writes them: one a line, each after a dash."""
    return "\n".join(f"- {warning}" for warning in warnings)


def plain_text(value: object) -> str:
    """Return a text that UTF-8 can encode; empty for a value that is no text."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _clamp(duration: float) -> float:
    # NaN alone differs from itself; math.isnan would fail on integers beyond a float's range.
    return 1.0 if duration != duration else float(min(max(duration, 0.0), MAX_DURATION_SEC))


def _feedback(text: str) -> str:
    text = plain_text(text)
    return text if len(text) <= _MAX_FEEDBACK_CHARS else f"{text[:_MAX_FEEDBACK_CHARS]}…"
