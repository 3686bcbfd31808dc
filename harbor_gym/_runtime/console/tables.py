"""Tables as text: columns aligned, no colour, nothing cut, so that they read the same on a terminal and in a pipe."""

import io
from collections.abc import Collection, Sequence

_WIDTH = 100_000
"""Columns of the page that a table is laid out on: more than any has, so that nothing is wrapped or cut."""


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table with two spaces between its columns.

    Args:
        head: The columns' titles.
        rows: Cells, as many in each row.
        right: Columns, counted from 0, whose cells end below one another.
    """
    return _render(head, rows, right, is_markdown=False)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table that Markdown shows as one; the arguments are those of :func:`plain_table`."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    titles, rule, *lines = _render(head, rows, right, is_markdown=True).splitlines()
    marks = [f"{part[:-1]}:" if number in right else part for number, part in enumerate(rule.strip("|").split("|"))]
    return "\n".join([titles, f"|{'|'.join(marks)}|", *lines])  # rich aligns the text alone


def _render(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int], *, is_markdown: bool) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.MARKDOWN if is_markdown else None, pad_edge=is_markdown, show_edge=is_markdown)
    table.padding = (0, 1) if is_markdown else (0, 2, 0, 0)
    for number, title in enumerate(head):
        table.add_column(Text(title), justify="right" if number in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # a Text is shown as it is: no markup, no emoji codes
    page = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with page.capture() as captured:
        page.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())
