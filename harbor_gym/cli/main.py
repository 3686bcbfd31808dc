"""The console command ``harbor-gym``: its commands, one file each. They parse and print, and compute nothing."""

from typing import Annotated

import typer

from harbor_gym import __version__
from harbor_gym.cli import base, bench, cache, check, check_sandbox, doctor, reap, report, sif, watch

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
app.command()(reap.reap)
app.command()(report.report)
app.command()(watch.watch)
app.add_typer(cache.cache, name="cache")
app.add_typer(sif.sif, name="sif")
app.add_typer(bench.bench, name="bench")


@app.command("eval", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def _eval(context: typer.Context) -> None:
    """Play episodes of each task with a policy, and show how many it solves."""
    # Its flags are made from its configuration, which costs a second that other commands should not pay.
    from harbor_gym.cli.recipes.evaluate import eval_app

    eval_app(program="harbor-gym eval")(context.args, prog_name="harbor-gym eval")


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
