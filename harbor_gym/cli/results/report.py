"""``harbor-gym report``: a training run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a training run, finished or not.")],
    output: Annotated[Path | None, typer.Option(help="File to write. [default: report.html in that folder]")] = None,
    episodes: Annotated[int, typer.Option(min=0, help="Episodes on the page; every batch gives some.")] = 400,
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the text and recordings on the page.")] = 64,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Instead, a folder for two tables: episodes.parquet and turns.parquet (extra frame)."),
    ] = None,
) -> None:
    """Write a training run as one HTML file: curves, batches, and every episode turn by turn with its recording."""
    from harbor_gym.report import write_page, write_parquet

    if parquet is not None:
        with one_line_errors():
            paths = write_parquet(run_dir, parquet)
        for path in paths:
            echo(str(path))
        return

    with one_line_errors():
        page = write_page(run_dir, output, max_episodes=episodes, max_bytes=megabytes << 20)
    left_out = page.found - page.shown
    rest = f"; {left_out} left out (--episodes, --megabytes)" if left_out else ""
    bad = f"; transcripts that can't be read: {', '.join(page.unreadable)}" if page.unreadable else ""
    echo(f"{page.path}: {page.shown} episodes{rest}{bad}")
