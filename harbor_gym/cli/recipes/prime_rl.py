"""The command of ``recipes/prime_rl/train.py``: checks a Prime-RL run, then executes it in this process's place."""

import os
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.adapters.verifiers.prime_rl import check_run, command, read_env_file
from harbor_gym.cli.recipes.common import new_app
from harbor_gym.cli.shared import FAILED, echo, one_line_errors

app = new_app()


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def main(
    context: typer.Context,
    config: Annotated[Path, typer.Option(help="TOML of Prime-RL's rl, with Harbor tasks as a source.")],
    env_file: Annotated[
        Path | None, typer.Option(help="File of NAME=value lines (WANDB_API_KEY, a sandbox provider's keys, …).")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check, and start nothing.")] = False,
) -> None:
    """Check tasks, sandboxes and versions, then start Prime-RL's rl. Other arguments go to rl as they are."""
    with one_line_errors("train.py"):
        if env_file is not None:
            # Variables that are set already take precedence, as with `uv run --env-file`.
            os.environ.update({**read_env_file(env_file), **os.environ})
        _require_ready(config)
        if not check:
            arguments = command(config, context.args)
            os.execvp(arguments[0], arguments)


def _require_ready(config: Path) -> None:
    is_ready = True
    for finding in check_run(config):
        echo(f"{'ok     ' if finding.is_ok else 'problem'} {finding.what}: {finding.found}", err=not finding.is_ok)
        is_ready &= finding.is_ok
    if not is_ready:
        raise typer.Exit(FAILED)
