"""``harbor-gym export``: the episodes of runs as a data set."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def export(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs or evaluations.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .jsonl or .parquet file, or a folder for datasets.load_dataset.")
    ],
    form: Annotated[
        Literal["messages", "tokens"],
        typer.Option(help="Chats, or the exact token ids with masks and log-probabilities."),
    ] = "messages",
    where: Annotated[
        list[str] | None,
        typer.Option(help="Condition on task, split, batch, group, end_reason or reward: reward=1. May be repeated."),
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="The least reward.")] = None,
    best_of_group: Annotated[bool, typer.Option("--best-of-group", help="Of each group keep the best alone.")] = False,
) -> None:
    """Write the episodes of runs as one data set, a row each; those without a verdict are left out.

    TRL's SFTTrainer and tinker-cookbook's loader of conversations read the form of messages as it is.
    """
    from harbor_gym.report import export as write

    with one_line_errors():
        done = write(
            run_dirs,
            output,
            form=form,
            where=where or (),
            min_reward=min_reward,
            best_of_group=best_of_group,
        )
    rest = "".join(f"; {count} {reason}" for reason, count in done.left_out.items() if count)
    echo(f"{done.path}: {done.episodes} episodes{rest}")
