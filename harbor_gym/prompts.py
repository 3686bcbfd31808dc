"""What a chat policy is told: the protocol once, the task once, then only what is new.

The wording is ours; the protocol is the one that Harbor's terminus-json-plain parser accepts.
"""

PROMPT_FORMAT = "1"
"""Version of the texts below. A policy trained under one version should be run under the same."""

_SYSTEM = """\
You work in a Linux terminal through tmux. Each of your messages is one JSON object:
{"analysis": "what you see", "plan": "what you do next", "commands": [{"keystrokes": "ls -la\\n", "duration": 1.0}], \
"task_complete": false}
Keystrokes are typed as they are: end a command with \\n to run it. A command may be one key by name, such as C-c \
or Escape. "duration" is the longest wait in seconds; a finished command returns at once. An empty "keystrokes" only \
waits. Set "task_complete" to true when the work is done; you are asked once to confirm. \
Write nothing outside the JSON."""

_CONFIRMATION = """\
You declared the task complete. It will be graded as it stands. \
Send "task_complete": true again to confirm, or go on."""


def system_prompt() -> str:
    """Return the system message: the action format and the rules of the terminal."""
    return _SYSTEM


def first_message(instruction: str, screen: str) -> str:
    """Return the first user message: the task's instruction, sent once, and the terminal as it stands.

    Args:
        instruction: The task's instruction, as Harbor hands it to an agent.
        screen: The terminal's first observation.
    """
    return f"Task:\n{instruction.strip()}\n\nTerminal:\n{screen}"


def confirmation_request(screen: str) -> str:
    """Return the observation after a first ``task_complete``: the terminal, then the question.

    Args:
        screen: What the commands of the same message printed.
    """
    return f"{screen}\n\n{_CONFIRMATION}" if screen else _CONFIRMATION


def parse_error(error: str, warning: str | None = None) -> str:
    """Return the observation after a message that could not be read as an action.

    Args:
        error: The parser's errors.
        warning: The parser's warnings, if any.
    """
    details = f"{error}\n{warning}" if warning else error
    return f"[not executed: your message could not be read]\n{details}\nSend one JSON object in the given format."


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
