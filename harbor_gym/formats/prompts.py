"""The text of prompts for a chat policy: the protocol once, the task once, then only what is new.

The wording is ours; the protocols are those that the parsers of ``harbor_gym.formats`` accept.
"""

from harbor_gym.formats.template_text import TemplateText
from harbor_gym.types import ActionFormat

PROMPT_FORMAT = "1"
"""Version of the texts below. A policy trained under one version should be run under the same."""

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

TERMINAL_BROKEN = "[the terminal does not answer any more: the session has ended]"
"""Shown instead of a screen where the policy broke its terminal."""

_SYSTEM = {
    ActionFormat.TERMINUS_JSON: _TERMINUS_JSON,
    ActionFormat.TERMINUS_XML: _TERMINUS_XML,
    ActionFormat.BASH_TOOL: _BASH_TOOL,
    ActionFormat.KEYSTROKES: _KEYSTROKES,
}

_CONFIRM = {
    ActionFormat.TERMINUS_JSON: 'Send "task_complete": true again',
    ActionFormat.TERMINUS_XML: "Send <task_complete>true</task_complete> again",
    ActionFormat.BASH_TOOL: "Call submit again",
    ActionFormat.KEYSTROKES: "Send <task_complete/> again",
}

_TRY_AGAIN = {
    ActionFormat.TERMINUS_JSON: "Send one JSON object in the given format.",
    ActionFormat.TERMINUS_XML: "Send one <response> in the given format.",
    ActionFormat.BASH_TOOL: "Send one tool call in the given format.",
    ActionFormat.KEYSTROKES: "Send what is to be typed.",
}


def system_prompt(action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> str:
    """Return the system message: the action format and the rules of the terminal.

    Args:
        action_format: The format that the policy's messages are read in.
    """
    return TemplateText(_SYSTEM[action_format])


def first_message(instruction: str, screen: str) -> str:
    """Return the first user message: the task's instruction, sent once, and the terminal as it stands.

    Args:
        instruction: The task's instruction, as Harbor hands it to an agent.
        screen: The terminal's first observation.
    """
    return f"Task:\n{instruction.strip()}\n\nTerminal:\n{screen}"


def confirmation_request(screen: str, action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> str:
    """Return the observation after a first ``task_complete``: the terminal, then the question.

    Args:
        screen: What the commands of the same message printed.
        action_format: The format that the policy's messages are read in.
    """
    question = (
        "You declared the task complete. It will be graded as it stands. "
        f"{_CONFIRM[action_format]} to confirm, or go on."
    )
    return f"{screen}\n\n{question}" if screen else question


def parse_error(
    error: str, warning: str | None = None, action_format: ActionFormat = ActionFormat.TERMINUS_JSON
) -> str:
    """Return the observation after a message that could not be read as an action.

    Args:
        error: The parser's errors.
        warning: The parser's warnings, if any.
        action_format: The format that the policy's messages are read in.
    """
    details = f"{error}\n{warning}" if warning else error
    return f"[not executed: your message could not be read]\n{details}\n{_TRY_AGAIN[action_format]}"


def with_warning(warning: str | None, screen: str) -> str:
    """Return ``screen`` with the parser's warnings before it, as Terminus-2 shows them.

    Args:
        warning: The parser's warnings, if any.
        screen: The terminal's observation.
    """
    return f"[warning]\n{warning}\n{screen}" if warning else screen


def next_step(instruction: str, screen: str) -> str:
    """Return the observation that opens the next step of a multi-step task.

    Args:
        instruction: The next step's instruction.
        screen: The terminal as that step finds it.
    """
    return f"[that step was graded; here is the next]\n{first_message(instruction, screen)}"
