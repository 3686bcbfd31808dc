"""``--help`` in plain text: groups of flags, uncut names on 80 columns, and no colour codes."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from textwrap import wrap
from typing import Annotated, Any, override

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from harbor_gym.cli.shared import INTERRUPTED, MISUSED, echo

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

_WHOLE = 1000
"""More characters than any sentence has, so that none is cut."""

_FIRST_COLUMN = 34
"""Width of the flags' column; a longer flag has its own line."""


COMMON = "Common"
"""The group of options that ``--help`` explains; where a command has one, ``--help-all`` explains the others."""

_ALWAYS = ("Arguments", COMMON, "Options")
_IS_WHOLE = "harbor_gym.help_all"


def _show_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        context.meta[_IS_WHOLE] = True
        echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Explain every option and exit.")
]
"""The option of a command with common options."""


_REFUSAL: Any = typer.BadParameter.__mro__[1]
"""What typer raises at a command line that it can't read, of which no public name is."""


_KIND = re.compile(r"<(?:list\[)?(.*?)(?:\]| range)?>")

_OF_PYDANTIC = "Value error, "
"""What pydantic, by which typer reads values, puts before a reason."""


@contextmanager
def _one_line() -> Generator[None]:
    """Print typer's refusal of a command line as every other error, in one line with its status; and an interrupt."""
    try:
        yield
    except _REFUSAL as exc:
        line, context = str(exc.format_message()), getattr(exc, "ctx", None)
        if "\n" in line:  # a group's help
            raise
        program = context.command_path if context is not None else "harbor-gym"
        echo(f"error: {line.replace(_OF_PYDANTIC, '').rstrip('.')}: see {program} --help", err=True)
        raise typer.Exit(MISUSED) from exc
    except KeyboardInterrupt as exc:
        echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from exc


def describe_parameter(parameter: Any, ctx: Any) -> tuple[str, str, str] | None:
    """Return a parameter's group, its name with the kind of its value, and its text; None for a hidden one."""
    if (record := parameter.get_help_record(ctx)) is None:
        return None
    is_argument = isinstance(parameter, TyperArgument)
    group = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
    # An argument's name says what it is, and the text of an option says whether it may be repeated.
    name = record[0].partition(" <")[0] if is_argument else _KIND.sub(r"<\1>", record[0])
    return group, name, record[1].replace("\\[", "[")


class PlainCommand(TyperCommand):
    """A command whose help lists the options by group (``rich_help_panel``), only the common ones with their text."""

    @override
    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the command line."""
        with _one_line():
            return super().make_context(*args, **extra)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options in the order of its first option."""
        groups: dict[str, list[tuple[str, str]]] = {}
        names: dict[str, list[str]] = {}
        for parameter in self.get_params(ctx):
            if (described := describe_parameter(parameter, ctx)) is not None:
                title, name, meaning = described
                groups.setdefault(title, []).append((name, meaning))
                names.setdefault(title, []).extend(parameter.opts)
        is_whole = COMMON not in groups or _IS_WHOLE in ctx.meta
        others = {} if is_whole else {title: names[title] for title in groups if title not in _ALWAYS}
        # Arguments and common options come first, those without a group last, like --help.
        for title in sorted(groups, key=lambda title: (title == "Options", title not in _ALWAYS)):
            if is_whole or title in _ALWAYS:
                with formatter.section(title):
                    formatter.write_dl(groups[title], col_max=_FIRST_COLUMN)
        if others:
            first = max(map(len, others)) + 4
            with formatter.section("More, explained by --help-all"):
                for title, flags in others.items():
                    # Unlike write_dl, without a break at a flag's own hyphens.
                    lines = wrap(" ".join(flags), formatter.width - first, break_on_hyphens=False)
                    formatter.write(
                        "".join(f"{'' if n else f'  {title}':<{first}}{line}\n" for n, line in enumerate(lines))
                    )


class PlainGroup(TyperGroup):
    """A group of commands with plain help, which lists each command's first sentence uncut."""

    @override
    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the command line up to the command's name."""
        with _one_line():
            return super().make_context(*args, **extra)

    @override
    def invoke(self, ctx: Any) -> Any:
        """Find the command, and run it."""
        with _one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(_WHOLE)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
