"""The command behind ``recipes/train.py``."""

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from harbor_gym.adapters.tinker.training.config import BACKEND_DEFAULTS, TASKS, Backend, TrainConfig
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, flags_of, given_values, make_config
from harbor_gym.errors import UsageError


def train(config: TrainConfig) -> Path:
    """Check a run, then train it. Blocks until the run is over; progress is printed.

    Returns:
        The run's folder.

    Raises:
        HarborGymError: A setting, a task or the sandbox can't be used, before anything is started; or the run failed.
    """
    # Read when tqdm is imported: the cookbook's progress bars would break up our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from harbor_gym.adapters.tinker.training.preparation import claim_folder, prepare
    from harbor_gym.adapters.tinker.training.run import train as train_run
    from harbor_gym.embedded.service import service_of

    run = asyncio.run(prepare(config))
    claim_folder(run)
    try:
        asyncio.run(train_run(run, service_of(config.backend, typer.echo), show=typer.echo))
    except KeyboardInterrupt as exc:
        exc.add_note(f"resume with --log-path {run.log_path} --log-dir-exists resume")
        raise
    return run.log_path


def train_app(model: type[TrainConfig] = TrainConfig, *, program: str) -> typer.Typer:
    """Return a command line made from a configuration's fields, which trains.

    Args:
        model: ``TrainConfig``, or a subclass with other defaults or more fields.
        program: What its error messages begin with.
    """
    flags = flags_of(model, _SPELLING)

    def command(context: typer.Context, **values: Any) -> None:
        try:
            with common.one_line_errors(program):
                folder = train(make_config(model, _complete(given_values(flags, context, values)), flags))
        except KeyboardInterrupt as exc:
            notes = "; ".join(["interrupted", *getattr(exc, "__notes__", ())])
            typer.echo(f"{program}: {notes}", err=True)
            raise typer.Exit(common.INTERRUPTED) from None
        typer.echo(f"run folder: {folder}")

    add_flags(command, flags)
    app = common.new_app()
    app.command(help="Train a policy on Harbor tasks.")(command)
    return app


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    """Add to what the command line gave what ``env`` needs besides: a task, and the backend's number of turns."""
    sources = [*values.get("task_dirs", ()), *values.get("tasks", ())]
    if not sources:
        raise UsageError(
            "nothing to train on: give --task-dir DIRECTORY, or --task git+URL@COMMIT#path or org/name@ref"
        )
    defaults = BACKEND_DEFAULTS[Backend(values.get("backend", Backend.TINKER))]
    return {**values, "env": {"task_dir": sources[0], "max_turns": defaults.max_turns, **values.get("env", {})}}


def _weights(texts: Sequence[str]) -> dict[str, float]:
    """Read ``NAME=WEIGHT``."""
    try:
        return {name: float(weight) for name, weight in (text.rsplit("=", 1) for text in texts)}
    except ValueError as exc:
        raise UsageError(f"--task-weight is NAME=NUMBER, got {', '.join(texts)}") from exc


def _shown_defaults() -> dict[str, str]:
    """Return the defaults that depend on the backend, as ``--help`` shows them."""
    tinker, local = (dataclasses.asdict(BACKEND_DEFAULTS[backend]) for backend in (Backend.TINKER, Backend.LOCAL))
    shown = {
        name: f"{tinker[name]}" if tinker[name] == local[name] else f"{tinker[name]}; local: {local[name]}"
        for name in tinker
    }
    return {
        **shown,
        "env.max_turns": shown.pop("max_turns"),
        "model_name": f"{tinker['model_name']}; local: a small one, made here",
        "log_path": "runs/TASK-TIME",
        "test_episodes": "a group of one task, 1 of several",
    }


_SPELLING = common.spelling(
    names={"task_dirs": "task-dir", "tasks": "task", "task_weights": "task-weight", "test_tasks": "test-task"},
    parsers={"task_weights": _weights},
    groups=dict.fromkeys(("env.sandbox", "env.sandbox_options"), TASKS),
    defaults=_shown_defaults(),
)
