"""``harbor-gym report``: a training run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a training run, finished or not.")],
    output: Annotated[Path | None, typer.Option(help="File to write. [default: report.html in that folder]")] = None,
    episodes: Annotated[int, typer.Option(min=0, help="Episodes to put into it; every batch gives some.")] = 400,
    megabytes: Annotated[int, typer.Option(min=1, help="Text and recordings to put into it.")] = 64,
) -> None:
    """Write a training run as one HTML file: curves, batches, and every episode turn by turn with its recording."""
    from harbor_gym.report import write_page

    with one_line_errors():
        page = write_page(run_dir, output, max_episodes=episodes, max_bytes=megabytes << 20)
    left_out = page.found - page.shown
    rest = f"; {left_out} left out (--episodes, --megabytes)" if left_out else ""
    echo(f"{page.path}: {page.shown} episodes{rest}")
