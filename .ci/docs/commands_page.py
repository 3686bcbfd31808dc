"""Print the page of commands: each command with what ``--help-all`` prints, as text that fits any width."""

import re
from collections.abc import Iterator
from typing import Any

import click
from typer.main import get_command

from harbor_gym.cli.lazy import LAZY
from harbor_gym.cli.main import app
from harbor_gym.cli.plain_help import COMMON, describe_parameter

HEAD = """# Commands

What `harbor-gym COMMAND --help-all` prints. `harbor-gym --install-completion` completes commands and flags in your
shell.
"""

_MARKS = re.compile(r"([\\*_\[\]<>#|])")


def page() -> str:
    """Return the page, in Markdown."""
    return "\n\n".join([HEAD.rstrip(), *_commands("harbor-gym", get_command(app))]) + "\n"


def _commands(name: str, command: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    names = (*above, name)
    if not above:
        for inner in command.list_commands(click.Context(command)):
            known = (
                get_command(LAZY[inner].app()) if inner in LAZY else command.get_command(click.Context(command), inner)
            )
            yield from _commands(inner, known, names)
        return
    context = click.Context(command, info_name=" ".join(names))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## {' '.join(names)}"
    yield _text(re.sub(r"\n[ \t]+", "\n", command.help or ""))
    yield f"`{usage}`"
    yield from _flags(command, context)
    for inner in getattr(command, "commands", {}):
        yield from _commands(inner, command.commands[inner], names)


def _flags(command: Any, context: click.Context) -> Iterator[str]:
    """Yield each group of arguments and options: its title, then a list of definitions."""
    groups: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if (described := describe_parameter(parameter, context)) is not None:
            title, name, meaning = described
            groups.setdefault(title, []).append(f"`{name}`\n:   {_text(meaning).replace(chr(10), ' ')}")
    for title in sorted(groups, key=lambda title: (title == "Options", title not in ("Arguments", COMMON))):
        yield f"**{title}**"
        yield "\n\n".join(groups[title])


def _text(text: str) -> str:
    """Return plain text as Markdown; what is in backticks stays."""
    parts = text.split("`")
    return "`".join(part if number % 2 else _MARKS.sub(r"\\\1", part) for number, part in enumerate(parts))


if __name__ == "__main__":
    print(page(), end="")
