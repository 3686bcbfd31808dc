"""The console command ``harbor-gym``: its commands, one file each. They parse and print, and compute nothing."""

from typing import Annotated

import typer

from harbor_gym import __version__
from harbor_gym.cli import base, bench, cache, check, check_sandbox, doctor, reap, report, watch
from harbor_gym.cli.recipes import evaluate

app = typer.Typer(
    name="harbor-gym",
    help="Harbor tasks as reinforcement-learning environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(check.check)
app.command("check-sandbox")(check_sandbox.check_sandbox)
app.command()(doctor.doctor)
app.command()(base.base)
app.command("eval", help=evaluate.HELP)(evaluate.eval_command(program="harbor-gym eval"))
app.command()(reap.reap)
app.command()(report.report)
app.command()(watch.watch)
app.add_typer(cache.cache, name="cache")
app.add_typer(bench.bench, name="bench")


def main() -> None:
    """Run the command line; the console script's entry point."""
    app(prog_name="harbor-gym")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"harbor-gym {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
