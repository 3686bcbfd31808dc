"""``--help`` in plain text: groups of flags, uncut names on 80 columns, and no colour codes."""

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

_WHOLE = 1000
"""More characters than any sentence has, so that none is cut."""

_FIRST_COLUMN = 34
"""Width of the flags' column; a longer flag has its own line."""


class PlainCommand(TyperCommand):
    """A command whose help lists the options by group (``rich_help_panel``)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options in the order of its first option."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                kind = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
                title = getattr(parameter, "rich_help_panel", None) or kind
                groups.setdefault(title, []).append((record[0], record[1].replace("\\[", "[")))
        # Options without a group come last, like --help.
        for title in sorted(groups, key="Options".__eq__):
            with formatter.section(title):
                formatter.write_dl(groups[title], col_max=_FIRST_COLUMN)


class PlainGroup(TyperGroup):
    """A group of commands with plain help, which lists each command's first sentence uncut."""

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
