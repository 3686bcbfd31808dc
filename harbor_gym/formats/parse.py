"""Parse a policy's action into commands. No text that a model can write raises."""

from collections.abc import Sequence

from harbor_gym.errors import UsageError
from harbor_gym.formats.action_formats import FORMATS
from harbor_gym.formats.parsed import MAX_MESSAGE_CHARS, ParsedAction, check_commands, failure
from harbor_gym.formats.tool_text import ToolDefinition
from harbor_gym.types import ActionFormat, Command


def parse_action(
    action: str | Sequence[Command | tuple[str, float]],
    *,
    format: ActionFormat = ActionFormat.TERMINUS_JSON,
    tools: Sequence[ToolDefinition] = (),
) -> ParsedAction:
    """Read an action: text in the given format, or the commands themselves.

    Args:
        action: The action.
        format: The format of its text.
        tools: Further tools beside the terminal's, which a format with calls can call.

    Raises:
        UsageError: ``action`` is neither text nor a sequence of commands, or a duration is negative or no number.
    """
    if isinstance(action, str):
        if len(action) > MAX_MESSAGE_CHARS:
            return failure(f"The message has {len(action)} characters; at most {MAX_MESSAGE_CHARS} are read")
        form = FORMATS[ActionFormat(format)]
        return form.parse_with_tools(action, tools) if tools and form.parse_with_tools else form.parse(action)
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
