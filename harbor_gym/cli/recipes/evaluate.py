"""The command behind ``recipes/eval.py`` and ``harbor-gym eval``."""

import contextlib
import inspect
import sys
from typing import Annotated, Any

import typer

from harbor_gym.adapters.tinker.policies import EvalConfig
from harbor_gym.cli import completion
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, argument, flags_of, given_values, make_config
from harbor_gym.cli.shared import FAILED, INTERRUPTED, echo, loading, one_line_errors

MAX_TURNS = 30
HELP = """Play episodes of each task with a policy, and show how many it solves, as in: harbor-gym eval my-task
--model NAME --base-url http://localhost:8000/v1 -k 4"""

_SPELLING = common.spelling(
    names={"paths": None},
    defaults={
        "env.max_turns": str(MAX_TURNS),
        "max_tokens": "the run's",
        "output": "runs/eval-TASK-TIME",
        **common.TRACK_DEFAULTS,
    },
    groups=dict.fromkeys(EvalConfig.model_fields.keys() - {"env"}, "Evaluation"),
    with_commas=("attempts",),
    also={
        "n_concurrent": ("-n", "--concurrency"),
        "max_retries": ("--retries",),
        "episodes": ("-k",),
        "model": ("-m",),
        "output": ("-o",),
    },
    completions={"run": completion.runs},
    common=(
        *("env.sandbox", "env.agent", "env.max_turns", "run", "checkpoint", "model", "base_url", "model_name"),
        *("episodes", "n_concurrent", "max_tokens", "temperature", "output"),
    ),
)


def eval_app() -> typer.Typer:
    """Return the evaluation's command line, made from the fields of ``EvalConfig``."""
    flags = flags_of(EvalConfig, _SPELLING)

    def command(context: typer.Context, paths: list[str], as_json: bool, **values: Any) -> None:
        with one_line_errors():
            given = given_values(flags, context, values)
            env = {"task_dir": paths[0], "max_turns": MAX_TURNS, **given.get("env", {})}
            config = make_config(EvalConfig, {**given, "paths": paths, "env": env}, flags)
            # Imported here, since it imports Harbor's trial, for which --help need not wait.
            with loading():
                from harbor_gym.cli.recipes import evaluation
                from harbor_gym.evaluation import describe_losses

            if config.output is None:
                config = config.model_copy(update={"output": evaluation.default_output(config.paths)})
            try:
                # With --json standard output has the result alone.
                with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                    report = evaluation.evaluate_policy(config)
            except KeyboardInterrupt:
                echo(f"interrupted; the same command with --output {config.output} goes on", err=True)
                raise typer.Exit(INTERRUPTED) from None
        evaluation.show_report(report, config.output, as_json=as_json)
        with contextlib.redirect_stdout(sys.stderr):  # some trackers print
            evaluation.track(config, report)
        if (losses := describe_losses(report)) is not None:
            echo(f"error: {losses}", err=True)
            raise typer.Exit(FAILED)

    paths = argument("paths", help=EvalConfig.model_fields["paths"].description, is_required=True)
    kind = Annotated[bool, typer.Option("--json", help="Print the result as one object, and the progress on stderr.")]
    as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=False)
    add_flags(command, flags, first=[paths, as_json])
    app = common.new_app()
    app.command(help=HELP, **common.COMMAND)(command)
    return app
