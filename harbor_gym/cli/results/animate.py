"""``harbor-gym animate``: a recorded episode as an animated picture."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def animate(
    recording: Annotated[
        Path, typer.Argument(metavar="FILE", help="Recording of an episode (.cast), as a run's transcripts/ has.")
    ],
    output: Annotated[Path | None, typer.Option(help="File to write. [default: beside the recording]")] = None,
    turn_sec: Annotated[float, typer.Option(min=0.1, help="Seconds that each turn is shown.")] = 2.0,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the screen to draw, the last ones.")] = None,
) -> None:
    """Draw a recorded episode as an animated SVG, turn by turn: for a README, a paper or a chat."""
    from harbor_gym._runtime.files import named_file
    from harbor_gym.report.animation import write_animation

    with one_line_errors():
        path = named_file(output) if output else recording.parent / f"{recording.stem}.svg"
        turns = write_animation(recording, path, turn_sec=turn_sec, max_rows=rows)
    echo(f"{path}: {turns} turns")
