"""Print the page of commands: each command with its own help, as ``--help`` prints it."""

import re
from collections.abc import Iterator
from typing import Any

import click
from typer.main import get_command

from harbor_gym.cli.lazy import LAZY
from harbor_gym.cli.main import app

WIDTH = 96

HEAD = """# Commands

What `harbor-gym COMMAND --help` prints. `harbor-gym --install-completion` completes commands and flags in your shell.
"""


def page() -> str:
    """Return the page, in Markdown."""
    parts = [HEAD]
    parts += [
        f"## {' '.join(names)}\n\n```text\n{text}\n```\n" for names, text in _helps("harbor-gym", get_command(app))
    ]
    return "\n".join(parts)


def _helps(name: str, command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    names = (*above, name)
    if not above:
        for inner in command.list_commands(click.Context(command)):
            known = (
                get_command(LAZY[inner].app()) if inner in LAZY else command.get_command(click.Context(command), inner)
            )
            yield from _helps(inner, known, names)
        return
    context = click.Context(command, info_name=" ".join(names), terminal_width=WIDTH, max_content_width=WIDTH)
    yield names, re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)
    for inner in getattr(command, "commands", {}):
        yield from _helps(inner, command.commands[inner], names)


if __name__ == "__main__":
    print(page(), end="")
