"""The action formats, one object each: the instruction to the policy, and the reader of its messages.

A further format is a member of :class:`harbor_gym.types.ActionFormat` and an entry of :data:`FORMATS`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harbor_gym.formats.keystrokes import parse_keystrokes
from harbor_gym.formats.parsed import ParsedAction
from harbor_gym.formats.terminus import parse_terminus_json, parse_terminus_xml
from harbor_gym.formats.tool_call import parse_tool_call
from harbor_gym.formats.tool_text import ToolDefinition
from harbor_gym.types import ActionFormat


class Format(NamedTuple):
    """One action format."""

    parse: Callable[[str], ParsedAction]
    """Reads one message; never raises."""

    system_prompt: str
    """The rules of the format and of the terminal."""

    confirm: str
    """How the policy repeats that the task is complete; the sentence goes on with "to confirm"."""

    try_again: str
    """The request to the policy after a message that could not be read."""

    parse_with_tools: Callable[[str, Sequence[ToolDefinition]], ParsedAction] | None = None
    """Reads one message that may call further tools beside the terminal's; None where the format has no calls."""


_TERMINUS_JSON = """\
You work in a Linux terminal through tmux. Each of your messages is one JSON object:
{"analysis": "what you see", "plan": "what you do next", "commands": [{"keystrokes": "ls -la\\n", "duration": 1.0}], \
"task_complete": false}
Keystrokes are typed as they are: end a command with \\n to run it. A command may be one key by name, such as C-c \
or Escape. "duration" is the longest wait in seconds; a finished command returns at once. An empty "keystrokes" only \
waits. Set "task_complete" to true when the work is done; you are asked once to confirm. \
Write nothing outside the JSON."""

_TERMINUS_XML = """\
You work in a Linux terminal through tmux. Each of your messages has this form:
<response>
<analysis>what you see</analysis>
<plan>what you do next</plan>
<commands>
<keystrokes duration="1.0">ls -la
</keystrokes>
</commands>
<task_complete>false</task_complete>
</response>
Keystrokes are typed as they are, nothing is unescaped: write < and &, not &lt; and &amp;, and end a command with a \
line break to run it. A command may be one key by name, such as C-c or Escape. "duration" is the longest wait in \
seconds; a finished command returns at once. Empty keystrokes only wait. Set task_complete to true when the work is \
done; you are asked once to confirm. Write nothing outside <response>."""

_BASH_TOOL = """\
You work in a Linux terminal through tmux with two tools. Each of your messages calls one:
<tool_call>
{"name": "bash", "arguments": {"command": "ls -la", "timeout": 60}}
</tool_call>
<tool_call>
{"name": "submit", "arguments": {}}
</tool_call>
bash types the command into the one shell that stays open, and Enter after it. A command may be one key by name, such \
as C-c or Escape. "timeout" is the longest wait in seconds, at most 60; a finished command returns at once. An empty \
command only waits. Call submit when the work is done; you are asked once to confirm."""

_KEYSTROKES = """\
You work in a Linux terminal through tmux. Each of your messages is typed as it is: write only what is to be typed, \
and end a command with a line break to run it. A message may be one key by name, such as C-c or Escape. A finished \
command returns at once; otherwise you see the screen after 10 seconds. An empty message only waits. When the work is \
done write the line <task_complete/> and nothing after it; you are asked once to confirm."""

FORMATS: dict[ActionFormat, Format] = {
    ActionFormat.TERMINUS_JSON: Format(
        parse=parse_terminus_json,
        system_prompt=_TERMINUS_JSON,
        confirm='Send "task_complete": true again',
        try_again="Send one JSON object in the given format.",
    ),
    ActionFormat.TERMINUS_XML: Format(
        parse=parse_terminus_xml,
        system_prompt=_TERMINUS_XML,
        confirm="Send <task_complete>true</task_complete> again",
        try_again="Send one <response> in the given format.",
    ),
    ActionFormat.BASH_TOOL: Format(
        parse=parse_tool_call,
        system_prompt=_BASH_TOOL,
        confirm="Call submit again",
        try_again="Send one tool call in the given format.",
        parse_with_tools=parse_tool_call,
    ),
    ActionFormat.KEYSTROKES: Format(
        parse=parse_keystrokes,
        system_prompt=_KEYSTROKES,
        confirm="Send <task_complete/> again",
        try_again="Send what is to be typed.",
    ),
}
