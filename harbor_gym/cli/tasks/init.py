"""``harbor-gym init``: write a new task to start from."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.tasks.new import TaskKind, write_task


def init(
    name: Annotated[
        Path, typer.Argument(metavar="PATH", help="The task's folder, which is made; its last part is the task's name.")
    ],
    kind: Annotated[
        TaskKind,
        typer.Option(help="steps: two steps; service: keeps processes; separate: a second sandbox for the verifier."),
    ] = TaskKind.SINGLE,
    org: Annotated[str, typer.Option(help="The part before the name in task.toml.")] = "example",
) -> None:
    """Write a small task that `harbor-gym check` finds ok, to be changed into one of your own."""
    with one_line_errors():
        folder = write_task(name, kind, org=org)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        echo(f"  {path.relative_to(folder.parent)}")
    echo(f"Check it: harbor-gym check {folder}\nPlay it: harbor-gym play {folder}")
