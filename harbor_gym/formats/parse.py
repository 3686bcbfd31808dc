"""From what the policy writes to what is typed: never an exception for anything a model can write."""

from collections.abc import Callable, Sequence

from harbor_gym.errors import UsageError
from harbor_gym.formats.keystrokes import parse_keystrokes
from harbor_gym.formats.parsed import MAX_MESSAGE_CHARS, ParsedAction, check_commands, failure
from harbor_gym.formats.terminus import parse_terminus_json, parse_terminus_xml
from harbor_gym.formats.tool_call import parse_tool_call
from harbor_gym.types import ActionFormat, Command

_PARSERS: dict[ActionFormat, Callable[[str], ParsedAction]] = {
    ActionFormat.TERMINUS_JSON: parse_terminus_json,
    ActionFormat.TERMINUS_XML: parse_terminus_xml,
    ActionFormat.BASH_TOOL: parse_tool_call,
    ActionFormat.KEYSTROKES: parse_keystrokes,
}


def parse_action(
    action: str | Sequence[Command | tuple[str, float]], *, format: ActionFormat = ActionFormat.TERMINUS_JSON
) -> ParsedAction:
    """Read an action: text in the given format, or the commands themselves, which have no format.

    Raises:
        UsageError: ``action`` is neither text nor a sequence of commands, or a duration is negative or no number. A
            model's text never raises.
    """
    if isinstance(action, str):
        if len(action) > MAX_MESSAGE_CHARS:
            return failure(f"The message has {len(action)} characters; at most {MAX_MESSAGE_CHARS} are read")
        return _PARSERS[ActionFormat(format)](action)
    try:
        items = list(action)
    except TypeError:
        raise UsageError(f"an action is text, or a list of (keystrokes, duration_sec); found {action!r}") from None
    pairs = [_as_pair(item, number) for number, item in enumerate(items, start=1)]
    commands, problem = check_commands(pairs)
    return ParsedAction(commands, task_complete=False, error=problem, warning=None, analysis="", plan="")


def _as_pair(item: Command | tuple[str, float], number: int) -> tuple[str, float]:
    match item:
        case Command(keystrokes=str(keystrokes), duration_sec=int() | float() as duration):
            pass
        case (str(keystrokes), int() | float() as duration):
            pass
        case _:
            raise UsageError(
                f"Command {number} of the action: expected a Command or (keystrokes, duration_sec), found {item!r}"
            )
    if not duration >= 0:
        raise UsageError(f"Command {number} of the action: its duration is {duration} seconds; expected 0 or more")
    return keystrokes, duration
