"""The text of prompts for a chat policy: the protocol once, the task once, then only new output.

The wording is this package's; the protocols are those that the parsers of ``harbor_gym.formats`` accept.
"""

from typing import NamedTuple, Protocol

from harbor_gym.formats.action_formats import FORMATS
from harbor_gym.formats.template_text import TemplateText
from harbor_gym.types import ActionFormat

PROMPT_FORMAT = "1"
"""Version of the texts here and in the action formats. A policy trained under one should be run under the same."""

TERMINAL_BROKEN = "[the terminal does not answer any more: the session has ended]"
"""Shown instead of a screen where the policy broke its terminal."""


def system_prompt(action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> str:
    """Return the system message: the action format and the rules of the terminal.

    Args:
        action_format: The format that the policy's messages are read in.
    """
    return TemplateText(FORMATS[action_format].system_prompt)


class PromptConfig(Protocol):
    """The part of an environment's configuration that a prompt needs."""

    @property
    def action_format(self) -> ActionFormat:
        """The action format of the policy's messages."""
        ...

    @property
    def system_prompt(self) -> str | None:
        """The system message; None is the action format's."""
        ...


class Opening(NamedTuple):
    """The messages before a policy's first one."""

    system: str
    first: str
    """The first user message."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """Both as a chat."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.first}]


def opening(config: PromptConfig, instruction: str, screen: str) -> Opening:
    """Return the messages before a policy's first one.

    Args:
        config: The environment's configuration.
        instruction: The task's instruction, as Harbor hands it to an agent.
        screen: The terminal's first observation.
    """
    return Opening(system_message(config), first_message(instruction, screen))


def system_message(config: PromptConfig) -> str:
    """Return the system message of a configuration: its own, else the action format's."""
    if config.system_prompt is None:
        return system_prompt(config.action_format)
    return TemplateText(config.system_prompt)


def first_message(instruction: str, screen: str) -> str:
    """Return the first user message: the task's instruction, sent once, and the terminal's text.

    Args:
        instruction: The task's instruction, as Harbor hands it to an agent.
        screen: The terminal's first observation.
    """
    return f"Task:\n{instruction.strip()}\n\nTerminal:\n{screen}"


def confirmation_request(screen: str, action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> str:
    """Return the observation after a first ``task_complete``: the terminal, then the question.

    Args:
        screen: The output of the same message's commands.
        action_format: The format that the policy's messages are read in.
    """
    question = (
        "You declared the task complete. It will be graded as it stands. "
        f"{FORMATS[action_format].confirm} to confirm, or go on."
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
    return f"[not executed: your message could not be read]\n{details}\n{FORMATS[action_format].try_again}"


def with_warning(warning: str | None, screen: str) -> str:
    """Return ``screen`` with the parser's warnings before it, as Terminus-2 shows them.

    Args:
        warning: The parser's warnings, if any.
        screen: The terminal's observation.
    """
    return f"[warning]\n{warning}\n{screen}" if warning else screen


def left_out(turns: int) -> str:
    """Return what stands in a prompt for output that was left out.

    Args:
        turns: The number of turns whose output is missing here, at least 1; all but the last lack their answer, too.
    """
    earlier = {1: "", 2: " and the turn before it"}.get(turns, f" and the {turns - 1} turns before it")
    return f"[left out to save room: this output{earlier}]"


SUMMARY_REQUEST = (
    "[no action is executed now]\n"
    "The conversation is too long to go on. A new one will begin with the task, your answer to this message, and the "
    "terminal's latest output; the terminal and everything that runs there stay as they are. Sum up in plain text what "
    "you have done and found out, what you changed, what runs, and what is left to do."
)
"""Asks for the summary with which the next conversation begins."""


def after_summary(instruction: str | None, summary: str, screen: str) -> str:
    """Return the first user message of the conversation that follows a summary.

    Args:
        instruction: The instruction of the task or the present step; None where ``screen`` has it.
        summary: The policy's.
        screen: The latest observation.
    """
    task = "" if instruction is None else f"Task:\n{instruction.strip()}\n\n"
    shown = screen if instruction is None else f"Terminal:\n{screen}"
    return f"{task}Your summary of the work so far:\n{summary.strip()}\n\n{shown}"


def next_step(instruction: str, screen: str) -> str:
    """Return the observation that opens the next step of a multi-step task.

    Args:
        instruction: The next step's instruction.
        screen: The terminal's text at the start of that step.
    """
    return f"[that step was graded; here is the next]\n{first_message(instruction, screen)}"
