"""From what the policy says to what is typed: never an exception for anything a model can write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harbor_gym.actions.harbor_parser import load_harbor_parser
from harbor_gym.errors import UsageError
from harbor_gym.types import Command

MAX_DURATION_SEC = 60.0
"""Ceiling on a command's duration. Source: Terminus-2 clamps there, after its parser."""

MAX_MESSAGE_CHARS = 16_000_000
"""Longer messages are refused unread."""

_MAX_FEEDBACK_CHARS = 2_000
"""A message can break every rule ten thousand times; the policy is told the first few."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """One action, ready to be carried out."""

    commands: tuple[Command, ...]
    task_complete: bool
    error: str | None
    """Why the action could not be read; then nothing is executed. Fit to be shown to the model."""

    warning: str | None
    """What was tolerated. Fit to be shown to the model."""

    analysis: str
    plan: str


def parse_action(action: str | Sequence[Command | tuple[str, float]]) -> ParsedAction:
    """Read an action: terminus-json-plain text, or the commands themselves.

    Raises:
        UsageError: ``action`` is neither text nor a sequence of commands. A model's text never raises.
    """
    if isinstance(action, str):
        return parse_terminus_json(action)
    pairs = [_as_pair(item, number) for number, item in enumerate(action, start=1)]
    commands, problem = _check_commands(pairs)
    return ParsedAction(commands, task_complete=False, error=problem, warning=None, analysis="", plan="")


def parse_terminus_json(text: str) -> ParsedAction:
    """Read one terminus-json-plain message with Harbor's own parser and Harbor's own verdicts.

    Added to it: nothing raises, ``task_complete`` is a bool, durations lie in [0, 60] (NaN is 1.0), and keystrokes
    that no terminal can be sent (NUL, lone surrogates) are parse errors.
    """
    if len(text) > MAX_MESSAGE_CHARS:
        return _failure(f"The message has {len(text)} characters; at most {MAX_MESSAGE_CHARS} are read", "")
    parser = load_harbor_parser()
    try:
        verdict = parser.parse_response(text)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        return _failure(f"Invalid JSON: {_explain(error)}", "")
    if verdict.error:
        return _failure(verdict.error, verdict.warning, verdict.analysis, verdict.plan)
    complete = bool(verdict.is_task_complete)
    commands, problem = _check_commands((command.keystrokes, command.duration) for command in verdict.commands)
    warning = verdict.warning
    if problem and not complete:
        return _failure(problem, warning, verdict.analysis, verdict.plan)
    if problem:
        warning = f"{warning}\n- {problem}" if warning else f"- {problem}"
    return ParsedAction(
        commands, complete, None, _feedback(warning) or None, _plain(verdict.analysis), _plain(verdict.plan)
    )


def _check_commands(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[Command, ...], str | None]:
    """Return the commands, or none of them and what is wrong with the first bad one."""
    commands: list[Command] = []
    for number, (keystrokes, duration) in enumerate(pairs, start=1):
        if "\0" in keystrokes:
            return (), f"Command {number} 'keystrokes' contains a NUL character, which cannot be typed"
        if any("\ud800" <= char <= "\udfff" for char in keystrokes):
            return (), f"Command {number} 'keystrokes' contains half of a surrogate pair, which is not a character"
        commands.append(Command(keystrokes, _clamp(duration)))
    return tuple(commands), None


def _clamp(duration: float) -> float:
    # NaN alone differs from itself; math.isnan would fail on integers beyond a float's range.
    return 1.0 if duration != duration else float(min(max(duration, 0.0), MAX_DURATION_SEC))


def _as_pair(item: Command | tuple[str, float], number: int) -> tuple[str, float]:
    match item:
        case Command(keystrokes=str(keystrokes), duration_sec=int() | float() as duration):
            return keystrokes, duration
        case (str(keystrokes), int() | float() as duration):
            return keystrokes, duration
        case _:
            raise UsageError(
                f"Command {number} of the action: expected a Command or (keystrokes, duration_sec), found {item!r}"
            )


def _failure(error: str, warning: str, analysis: object = "", plan: object = "") -> ParsedAction:
    return ParsedAction((), False, _feedback(error), _feedback(warning) or None, _plain(analysis), _plain(plan))


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"a value cannot be read ({error})"


def _feedback(text: str) -> str:
    text = _plain(text)
    return text if len(text) <= _MAX_FEEDBACK_CHARS else f"{text[:_MAX_FEEDBACK_CHARS]}…"


def _plain(value: object) -> str:
    """Return text that can be encoded; what is not text is dropped, as it was never meant for a reader."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
