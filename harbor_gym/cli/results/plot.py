"""``harbor-gym plot``: curves of runs, by learning rate."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli import completion
from harbor_gym.cli.shared import echo, one_line_errors


def plot(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Runs, or folders of runs.", autocompletion=completion.runs)
    ],
    output: Annotated[Path | None, typer.Option(help="Picture. [default: curves.png in the first folder]")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the picture. [default: the first folder's name]")] = None,
    reward_key: Annotated[str | None, typer.Option(help="Metric of the reward. [default: found in the run]")] = None,
    turns_key: Annotated[
        str | None, typer.Option(help="Metric of the turns per episode. [default: found in the run]")
    ] = None,
) -> None:
    """Draw total reward and turns per episode against the batch: a line a run, of a sweep a line a learning rate.

    Takes runs and folders of runs, ours or any of tinker-cookbook's, and prints where each began and ended.
    """
    from harbor_gym._runtime.files import named_file
    from harbor_gym.report import draw_rates, find_runs, format_summary
    from harbor_gym.report.metrics import load_runs

    with one_line_errors():
        runs = load_runs(find_runs(paths), reward_key=reward_key, turns_key=turns_key)
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        picture = named_file(output) if output else folder / "curves.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_rates(runs, picture, title=title or folder.resolve().name)
    echo(format_summary(runs))
    echo(f"picture: {picture}")
