"""The console command ``harbor-gym``. Each command has its own file, which only parses and prints."""

from collections.abc import Sequence
from typing import Annotated

import typer

from harbor_gym import __version__
from harbor_gym.cli import nemo_gym, sif
from harbor_gym.cli.exits import run_and_exit
from harbor_gym.cli.lazy import LAZY, CommandsGroup, LazyCommand
from harbor_gym.cli.machine import cache, doctor, reap, server
from harbor_gym.cli.plain_help import HELP_NAMES, PlainCommand
from harbor_gym.cli.results import animate, export, plot, regrade, report, sweep, view, watch
from harbor_gym.cli.shared import echo
from harbor_gym.cli.tasks import audit, check, check_engine, check_sandbox, demo, init, play

app = typer.Typer(
    name="harbor-gym",
    cls=CommandsGroup,
    help="Harbor tasks as reinforcement-learning environments.",
    no_args_is_help=True,
    context_settings=HELP_NAMES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _function, _summary in (
    ("demo", demo.demo, "Play an episode now, without any setup."),
    ("init", init.init, "Write a new task to start from."),
    ("play", play.play, "Play a task in your own terminal."),
    ("plot", plot.plot, "Draw the curves of runs."),
    ("report", report.report, "Write a run as one HTML file."),
    ("export", export.export, "Write runs as a data set."),
    ("regrade", regrade.regrade, "Grade a run's episodes anew, by the verifiers of today."),
    ("animate", animate.animate, "Draw a recorded episode as an animated SVG."),
    ("view", view.view, "Show a run's episodes as a live page."),
    ("watch", watch.watch, "Show a run's episodes live, in tmux."),
    ("check", check.check, "Check that tasks grade as they should."),
    ("audit", audit.audit, "Judge a whole data set of tasks."),
    ("check-sandbox", check_sandbox.check_sandbox, "Check a kind of sandbox against the contract."),
    ("check-engine", check_engine.check_engine, "Check what training relies on in an engine."),
    ("doctor", doctor.doctor, "Show what can be used on this machine."),
    ("reap", reap.reap, "Remove what killed processes left."),
):
    app.command(_name, cls=PlainCommand, short_help=_summary)(_function)
app.command(
    "sweep",
    cls=PlainCommand,
    short_help="Train for each rate and seed.",
    options_metavar="PATH [OPTIONS] [OPTIONS OF TRAIN]",
    context_settings=sweep.SETTINGS,
)(sweep.sweep)
app.add_typer(server.server, name="server")
app.add_typer(cache.cache, name="cache")
app.add_typer(sif.sif, name="sif")
app.add_typer(nemo_gym.nemo_gym, name="nemo-gym")


def _train() -> typer.Typer:
    from harbor_gym.cli.recipes.train import train_app

    return train_app(program="harbor-gym train")


def _eval() -> typer.Typer:
    from harbor_gym.cli.recipes.evaluate import eval_app

    return eval_app()


def _openenv() -> typer.Typer:
    from harbor_gym.cli.recipes.openenv import serve_app

    return serve_app(program="harbor-gym openenv")


LAZY["train"] = LazyCommand("Train a policy on Harbor tasks.", _train)
LAZY["eval"] = LazyCommand("Show how many episodes a policy solves.", _eval)
LAZY["openenv"] = LazyCommand("Serve tasks with OpenEnv.", _openenv)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process; the console script's entry point.

    Args:
        arguments: The arguments after the program's name; None takes the process's.
    """
    run_and_exit(lambda: app(None if arguments is None else list(arguments), prog_name="harbor-gym"))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        echo(f"harbor-gym {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
