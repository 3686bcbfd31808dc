"""Commands whose flags take a second to make; they are made only when the command or its help is run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, override

import typer
from typer.main import get_command

from harbor_gym.cli.plain_help import PlainCommand, PlainGroup
from harbor_gym.cli.shared import loading


@dataclass(frozen=True)
class LazyCommand:
    """A command that has not been made yet."""

    help: str
    """One line for the list of commands."""

    app: Callable[[], typer.Typer]
    """Makes a typer application with this one command."""


LAZY: dict[str, LazyCommand] = {}
"""Name → command, in the order of the list."""


class CommandsGroup(PlainGroup):
    """The console command's group: the commands of :data:`LAZY`, and those registered with typer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {**{name: _Late(name, command) for name, command in LAZY.items()}, **self.commands}


class _Late(PlainCommand):
    def __init__(self, name: str, lazy: LazyCommand) -> None:
        super().__init__(name=name, help=lazy.help, short_help=lazy.help)
        self._lazy = lazy

    @override
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the command and return its context."""
        with loading():
            command = get_command(self._lazy.app())
        command.name = self.name
        return command.make_context(info_name, args, parent=parent, **extra)
