"""``harbor-gym server``: the embedded training server's environment."""

import typer

from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import echo, one_line_errors

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


@server.command("path")
def path() -> None:
    """Print the interpreter that would run the training server."""
    from harbor_gym.embedded import interpreter

    with one_line_errors():
        echo(interpreter.server_python())
