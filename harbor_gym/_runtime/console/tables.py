"""Tables as text: columns aligned, no colour, nothing cut, so that they read the same on a terminal and in a pipe."""

import io
from collections.abc import Collection, Sequence

_WIDTH = 100_000
"""Columns of the page that a table is laid out on: more than any table has, so that nothing is wrapped or cut."""


def plain_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (), widths: Sequence[int] = ()
) -> str:
    """Return a table with two spaces between its columns.

    Args:
        head: The columns' titles; empty for a table without titles.
        rows: Cells, equally many in each row. A cell may have several lines.
        right: Indices of the right-aligned columns, from 0.
        widths: Minimum widths of the first columns in characters, for a table whose rows are printed one at a time.
    """
    return _render(head, rows, right, widths)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a Markdown table; the arguments are those of :func:`plain_table`."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    titles, rule, *lines = _render(head, rows, right, is_markdown=True).splitlines()
    marks = [f"{part[:-1]}:" if number in right else part for number, part in enumerate(rule.strip("|").split("|"))]
    return "\n".join([titles, f"|{'|'.join(marks)}|", *lines])  # rich aligns the text alone


def _render(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int],
    widths: Sequence[int] = (),
    *,
    is_markdown: bool = False,
) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.MARKDOWN if is_markdown else None, pad_edge=is_markdown, show_edge=is_markdown)
    table.padding = (0, 1) if is_markdown else (0, 2, 0, 0)
    for number, title in enumerate(head or [""] * max(map(len, rows), default=0)):  # the blank line is left out below
        width = widths[number] if number < len(widths) else None
        table.add_column(Text(title), justify="right" if number in right else "left", no_wrap=True, min_width=width)
    for row in rows:
        # A Text is shown as it is, without markup and emoji codes, except tabs: rich counts them as one column.
        table.add_row(*(Text(cell.expandtabs()) for cell in row))
    page = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with page.capture() as captured:
        page.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())
