"""``harbor-gym nemo-gym``: write the server folder for NeMo Gym, and list a run's failed rollouts."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym import __version__
from harbor_gym.cli import options
from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.types import DEFAULT_SANDBOX

nemo_gym = typer.Typer(cls=PlainGroup, help="Play Harbor tasks in NeMo Gym.", no_args_is_help=True)


@nemo_gym.command("init")
def nemo_gym_init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The directory in which NeMo Gym's commands will run.")
    ],
    tasks: Annotated[
        Path, typer.Option(help="A directory of tasks, one task, or task:NAME; a relative path begins at DIRECTORY.")
    ] = Path("tasks"),
    alias: Annotated[str, typer.Option(help="The dataset's name in instance_id.")] = "tasks",
    env: options.Env = DEFAULT_SANDBOX,
    requirement: Annotated[
        str, typer.Option(help="How pip finds harbor_gym for the server: a version, or -e /a/checkout.")
    ] = f"harbor-gym=={__version__}",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write the agent server's folder, with configurations for rollouts and for training and an example input."""
    from harbor_gym.adapters.nemo_gym.server import write_server_folder

    with one_line_errors():
        written = write_server_folder(
            directory, tasks, alias=alias, sandbox=env, requirement=requirement, overwrite=force
        )
    for file in written:
        echo(file)


@nemo_gym.command("failures")
def nemo_gym_failures(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The rollouts' .jsonl file, or the directory that it is in.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per row.")] = False,
) -> None:
    """List the failed rollouts of a run: reason, trial's folder, and the end of the verifier's output."""
    from harbor_gym.adapters.nemo_gym.failures import failed_rows

    with one_line_errors():
        rows = failed_rows(run)
    if as_json:
        echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2, default=str))
        return
    for row in rows:
        echo(f"{row.instance_id}  {row.kind}  {'masked' if row.is_masked else 'counted'}")
        echo(f"  {row.reason}")
        echo(f"  trial: {row.trial_dir or 'not kept'}")
        for line in row.verifier_output.splitlines():
            echo(f"  | {line}")
    echo(f"{len(rows)} failed, {sum(row.is_masked for row in rows)} of them masked")
