"""The ``bash`` harness: one tool, and a second one for tasks of several steps."""

from typing import ClassVar

from harbor_gym.adapters.trl.harness import ToolHarness
from harbor_gym.errors import UsageError

BASH_TOOL_VERSION = "1"
"""Version of the tool's name, arguments and docstring, which are part of the prompt. A policy trained under one version
should be run under the same."""


class BashHarness(ToolHarness):
    """One tool ``bash`` in one persistent terminal session. The episode ends with the first message without a call."""

    _takes_text: ClassVar[bool] = True

    def bash(self, command: str) -> str:
        """Type a command into the one shell that stays open, press Enter, and return what the terminal shows.

        Args:
            command: The command, typed as it is. A key's name on its own, such as C-c, presses that key. An empty
                command only waits.

        Returns:
            The terminal's new text. A command that still runs after a minute goes on: wait for it, or press C-c.
        """
        if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a policy writes any JSON
            raise UsageError(f"command must be a string, got {type(command).__name__}")
        return self._type(command if command.endswith("\n") or not command else f"{command}\n")


class BashStepsHarness(BashHarness):
    """``bash`` for suites that have a task of several steps: a second tool goes on to the next step.

    A first message without a call ends the episode, as with ``bash``: the steps that are left are verified as they
    stand.
    """

    _takes_steps: ClassVar[bool] = True

    def finish_step(self) -> str:
        """Hand in the work of this step: it is verified, and the next step begins if there is one.

        Returns:
            What to do next and what the terminal shows, or that the task is over.
        """
        return self._finish_step()
