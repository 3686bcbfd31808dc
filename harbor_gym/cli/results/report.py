"""``harbor-gym report``: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli import completion
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folder of a run or an evaluation; several to compare.",
            autocompletion=completion.runs,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write. [default: report.html in the first folder]")
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of each run on the page; every batch gives some.")
    ] = 400,
    megabytes: Annotated[int, typer.Option(min=1, help="Size of each run's text and recordings.")] = 64,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Instead, a folder for two tables: episodes.parquet and turns.parquet (extra frame)."),
    ] = None,
) -> None:
    """Write a run or an evaluation as one HTML file: result, curves, and every episode turn by turn with its recording.

    Several runs stand side by side, with one chart for each quantity and a row for each task.
    """
    from harbor_gym.report import write_page, write_parquet

    if parquet is not None:
        with one_line_errors():
            if len(run_dirs) > 1:
                raise UsageError(f"--parquet takes one run, got {len(run_dirs)}")
            paths = write_parquet(run_dirs[0], parquet)
        for path in paths:
            echo(str(path))
        return

    with one_line_errors():
        page = write_page(run_dirs, output, max_episodes=episodes, max_bytes=megabytes << 20)
    left_out = page.found - page.shown
    rest = f"; {left_out} left out (--episodes, --megabytes)" if left_out else ""
    bad = f"; transcripts that can't be read: {', '.join(page.unreadable)}" if page.unreadable else ""
    echo(f"{page.path}: {page.shown} episodes{rest}{bad}")
