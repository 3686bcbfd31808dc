"""``harbor-gym reap``: remove the leftovers of killed processes."""

from typing import Annotated

import typer

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.cli.shared import FAILED, echo


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Remove also the tasks' images that Docker keeps and no container uses.")
    ] = False,
) -> None:
    """Remove what killed processes left on this machine: containers, networks, volumes, folders, control groups.

    Nothing of a living process or of another machine is touched, nor anything that harbor-gym did not make.
    """
    from harbor_gym.sandboxes import reaper

    found = reaper.find_leftovers() + (reaper.find_images() if images else [])
    if found:
        echo(plain_table((), [(item.kind, item.name) for item in found]))
    refusals = [] if dry_run else reaper.remove(found)
    if not found:
        echo("nothing is left of killed processes")
    elif dry_run:
        echo(f"{len(found)} would be removed")
    else:
        echo(f"{len(found) - len(refusals)} removed")
    for refusal in refusals:
        echo(f"not removed: {refusal}", err=True)
    if refusals:
        raise typer.Exit(FAILED)
