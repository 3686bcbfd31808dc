"""The command behind ``recipes/train.py`` and ``harbor-gym train``."""

import asyncio
import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harbor_gym._runtime.console.progress import ShowBar
from harbor_gym.adapters.tinker.training.config import (
    BACKEND_DEFAULTS,
    OUTPUT,
    TASKS,
    Backend,
    LogDirExists,
    TrainConfig,
    defaults_of,
)
from harbor_gym.adapters.tinker.training.folder import as_written, changed_settings, read_run_config, resumed_config
from harbor_gym.cli import completion
from harbor_gym.cli.progress import progress
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import Flag, add_flags, argument, flags_of, given_values, make_config
from harbor_gym.cli.shared import INTERRUPTED, announced, echo, loading, one_line_errors
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.tasks.specs import GRAMMAR, DirectorySpec, parse_spec


def train(config: TrainConfig) -> Path:
    """Check a run, then train, and print the progress. Blocks until the run is over.

    Returns:
        The run's folder.

    Raises:
        HarborGymError: A setting, a task or the sandbox can't be used (before anything is started), or the run failed.
    """
    # tqdm reads this at its import. The cookbook's progress bars would break our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    with loading():
        from harbor_gym.adapters.tinker.training.plan import TrainRun
        from harbor_gym.adapters.tinker.training.preparation import claimed_folder, prepare
        from harbor_gym.embedded.service import open_service, require_backend, require_policy
        from harbor_gym.report.tracking import Log, tracked

    async def prepared() -> TrainRun:
        run = await prepare(config)
        await require_policy(run)
        return run

    async def trained(show: Callable[[str], None], bar: ShowBar, log: Log) -> None:
        async with open_service(run, show, bar) as service:
            from harbor_gym.adapters.tinker.training.loop import run_loop

            await run_loop(run, service, show, bar, log)

    folder = config.log_path
    if folder is not None and config.log_dir_exists is LogDirExists.RESUME and _is_over(config, folder):
        echo(f"nothing to do: the run in {folder} is finished (--log-path names another run's folder)")
        return folder
    require_backend(config.backend)
    config.tracking.require()
    with announced("preparing the run"):
        run = asyncio.run(prepared())
    with claimed_folder(run):
        try:
            with tracked(config.tracking, run.log_path, as_written(config)) as log, progress() as shown:
                asyncio.run(trained(shown.line, shown.bar, log))
        except (KeyboardInterrupt, HarborGymError) as exc:
            exc.add_note(_how_to_resume(run.log_path))
            raise
    return run.log_path


def train_app(model: type[TrainConfig] = TrainConfig, *, program: str) -> typer.Typer:
    """Return the training's command line, made from a configuration's fields.

    Args:
        model: ``TrainConfig``, or a subclass with other defaults or more fields.
        program: The program's name in the help's example.
    """
    flags = flags_of(model, _SPELLING)

    def command(context: typer.Context, paths: list[str] | None, resume: Path | None, **values: Any) -> None:
        try:
            with one_line_errors():
                given = _with_paths(given_values(flags, context, values), paths or ())
                if resume is not None:
                    config = _resumed(model, resume, given, flags)
                else:
                    config = make_config(model, _complete(given), flags)
                folder = train(config)
        except KeyboardInterrupt as exc:
            notes = "; ".join(["interrupted", *getattr(exc, "__notes__", ())])
            echo(notes, err=True)
            raise typer.Exit(INTERRUPTED) from None
        echo(f"run folder: {folder}")

    option = typer.Option(
        "--resume", autocompletion=completion.runs, help="Continue the run in this folder, with all its flags."
    )
    kind = Annotated[Path | None, option]
    parameter = inspect.Parameter("resume", inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=None)
    paths = argument("paths", help=f"Tasks to train on: {GRAMMAR}.", is_required=False)
    add_flags(command, flags, first=[paths, parameter])
    app = common.new_app()
    text = f"Train a policy on Harbor tasks, as in: {program} task:devops_task --backend local"
    app.command(help=text, **common.COMMAND)(command)
    return app


def _with_paths(values: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Add the tasks that the command line names without a flag."""
    for text in paths:
        name = "task_dirs" if isinstance(parse_spec(text), DirectorySpec) else "tasks"
        values[name] = [*values.get(name, ()), text]
    return values


def _resumed(model: type[TrainConfig], folder: Path, given: Mapping[str, Any], flags: Sequence[Flag]) -> TrainConfig:
    """Return the settings of a run to resume; flags on the command line must equal them.

    Raises:
        UsageError: The folder has no run, or a flag differs from the run's.
    """
    own = {name for name in ("log_path", "log_dir_exists") if name in given}
    if own:
        named = ", ".join(f"--{flag.name}" for flag in flags if flag.dotted in own)
        raise UsageError(f"--resume RUN names the run's folder: leave out {named}")
    resumed_config(model, folder)
    written = read_run_config(folder)
    asked = make_config(model, _merged({**written, "log_path": folder}, given), flags)
    if changed := changed_settings(written, as_written(asked)):
        words = (f"{_flag_name(item.name, flags)} {item.before}, not {item.now}" for item in changed)
        raise UsageError(f"{folder} was started with {'; '.join(words)}: leave such flags out, or start another run")
    return asked.model_copy(update={"log_path": folder, "log_dir_exists": LogDirExists.RESUME})


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if both and name in ("env", "terminal", "track") else value
    return merged


def _flag_name(setting: str, flags: Sequence[Flag]) -> str:
    """Return the flag of a setting, or of the table that has it."""
    for flag in flags:
        if setting == flag.dotted or setting.startswith(f"{flag.dotted}."):
            return f"--{flag.name}"
    return setting


def _is_over(config: TrainConfig, folder: Path) -> bool:
    """Return whether a run is complete, including its last evaluation and the export of its best weights.

    Raises:
        UsageError: The run's folder can't be read.
    """
    from harbor_gym.evaluation.best import is_finished, read_best, read_checkpoints, read_evaluations

    if not is_finished(folder):
        return False
    if not config.eval_every:
        return True
    saved, evaluations = read_checkpoints(folder), read_evaluations(folder)
    is_evaluated = bool(evaluations) and evaluations[-1].batch == saved[-1].get("batch")
    has_weights = is_evaluated and read_best(folder).checkpoint in {record["name"] for record in saved}
    return is_evaluated and (not has_weights or (folder / "best").is_dir())


def _how_to_resume(folder: Path) -> str:
    """Return a hint on how to resume an interrupted run."""
    from harbor_gym.evaluation.best import read_checkpoints

    with contextlib.suppress(OSError):
        try:
            saved = read_checkpoints(folder)
        except UsageError as exc:
            return str(exc)
        if saved:
            return f"resume with --resume {folder} (from checkpoint {saved[-1]['name']})"
    return f"no checkpoint was saved yet; --resume {folder} starts its first batch again"


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    """Add the task, which ``env`` requires, and the backend's settings of an episode to the command line's values."""
    sources = [*values.get("task_dirs", ()), *values.get("tasks", ())]
    if not sources:
        raise UsageError(f"nothing to train on: name a task (or --task-dir TASK): {GRAMMAR}")
    defaults = defaults_of(Backend(values.get("backend", Backend.TINKER)), values.get("model_name"))
    given: dict[str, Any] = values.get("env", {})
    env = {"task_dir": sources[0], "max_turns": defaults.max_turns}
    if "agent" not in given:
        env["action_format"] = defaults.action_format
    return {**values, "env": {**env, **given}}


def _weights(texts: Sequence[str]) -> dict[str, float]:
    """Parse texts of the form ``NAME=WEIGHT``."""
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
        "demonstrations": "64 for smollm2-135m, else 0",
        "env.action_format": f"{shown.pop('action_format')}; local with a named model: keystrokes",
        "log_path": "runs/TASK-TIME",
        "test_episodes": "a group of one task, 1 of several",
        **common.TRACK_DEFAULTS,
    }


_SPELLING = common.spelling(
    names={
        "task_dirs": "task-dir",
        "tasks": "task",
        "task_weights": "task-weight",
        "test_tasks": "test-task",
        "batch_deadline_sec": "batch-deadline",
    },
    parsers={"task_weights": _weights},
    groups={**dict.fromkeys(("env.sandbox", "env.sandbox_options"), TASKS), "track": OUTPUT},
    defaults=_shown_defaults(),
    also={
        "max_retries": ("--retries", "--max-rollout-retries"),
        "log_path": ("--output", "-o"),
        "model_name": ("--model", "-m"),
    },
    completions={"task_dirs": completion.tasks, "tasks": completion.tasks, "log_path": completion.runs},
    common=(
        *("task_dirs", "env.sandbox", "env.agent", "env.max_turns", "backend", "model_name", "renderer_name"),
        *("max_tokens", "temperature", "groups_per_batch", "group_size", "num_batches", "learning_rate"),
        *("lora_rank", "save_every", "log_path"),
    ),
)
