"""Draw total reward and turns per episode against the batch, for each learning rate: mean and range over its runs.

Takes runs and folders of runs, ours or any of tinker-cookbook's:

    python recipes/plot.py runs/sweep
    python recipes/plot.py runs/a runs/b/metrics.jsonl --output compared.png --turns-key env/all/total_turns
"""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.report import draw_rates, find_runs, format_summary, load_curves


def main(
    paths: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    output: Annotated[Path | None, typer.Option(help="Picture. [default: curves.png in the first folder]")] = None,
    title: Annotated[str | None, typer.Option(help="Above the picture. [default: the first folder's name]")] = None,
    reward_key: Annotated[str | None, typer.Option(help="Metric that is the reward; found by itself.")] = None,
    turns_key: Annotated[str | None, typer.Option(help="Metric that is the turns per episode; likewise.")] = None,
) -> None:
    """Draw curves of runs by learning rate, and print where each began and ended."""
    try:
        runs = [load_curves(run, reward_key=reward_key, turns_key=turns_key) for run in find_runs(paths)]
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        picture = output or folder / "curves.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_rates(runs, picture, title=title or folder.resolve().name)
    except (UsageError, MissingDependencyError) as exc:
        typer.echo(f"plot.py: {exc}", err=True)
        raise typer.Exit(2) from exc
    typer.echo(format_summary(runs))
    typer.echo(f"picture: {picture}")


if __name__ == "__main__":
    typer.run(main)
