"""``--help`` in plain text: groups of flags, whole names on 80 columns, and no colour codes."""

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

_WHOLE = 1000
"""Characters of a sentence that are never reached."""

_FIRST_COLUMN = 34
"""Width of the flags' column; a longer flag has a line of its own."""


class PlainCommand(TyperCommand):
    """A command whose options stand in their groups (``rich_help_panel``), one below the other."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options in the order of its first option."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                kind = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
                title = getattr(parameter, "rich_help_panel", None) or kind
                groups.setdefault(title, []).append((record[0], record[1].replace("\\[", "[")))
        # Whatever has no group of its own comes last, as --help does.
        for title in sorted(groups, key="Options".__eq__):
            with formatter.section(title):
                formatter.write_dl(groups[title], col_max=_FIRST_COLUMN)


class PlainGroup(TyperGroup):
    """A group of commands with plain help, whose list has each command's first sentence whole."""

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
