"""The command behind ``recipes/eval.py`` and ``harbor-gym eval``."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from harbor_gym.adapters.tinker.policies import EvalConfig
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, flags_of, given_values, make_config
from harbor_gym.cli.shared import FAILED, INTERRUPTED, echo, one_line_errors

MAX_TURNS = 30
HELP = "Play episodes of each task with a policy, and show how many it solves."

_SPELLING = common.spelling(
    names={"paths": None},
    defaults={"env.max_turns": str(MAX_TURNS), "max_tokens": "the run's", "output": "runs/eval-TASK-TIME"},
    with_commas=("attempts",),
    earlier={"n_concurrent": "concurrency", "max_retries": "retries"},
)


def eval_app(*, program: str) -> typer.Typer:
    """Return the evaluation's command line, made from the fields of ``EvalConfig``.

    Args:
        program: The program's name in error messages.
    """
    app = common.new_app()
    app.command(help=HELP, **common.COMMAND)(eval_command(program=program))
    return app


def eval_command(*, program: str) -> Callable[..., None]:
    """Return the command as a function whose signature has the flags.

    Args:
        program: The program's name in error messages.
    """
    flags = flags_of(EvalConfig, _SPELLING)

    def command(context: typer.Context, paths: list[str], **values: Any) -> None:
        with one_line_errors(program):
            given = given_values(flags, context, values)
            env = {"task_dir": paths[0], "max_turns": MAX_TURNS, **given.get("env", {})}
            config = make_config(EvalConfig, {**given, "paths": paths, "env": env}, flags)
            # Imported here, since it imports Harbor's trial, for which --help need not wait.
            from harbor_gym.cli.recipes import evaluation
            from harbor_gym.evaluation import describe_losses

            if config.output is None:
                config = config.model_copy(update={"output": evaluation.default_output(config.paths)})
            try:
                report = evaluation.evaluate_policy(config)
            except KeyboardInterrupt:
                echo(f"{program}: interrupted; the same command with --output {config.output} goes on", err=True)
                raise typer.Exit(INTERRUPTED) from None
        evaluation.show_report(report, config.output)
        if (losses := describe_losses(report)) is not None:
            echo(f"{program}: {losses}", err=True)
            raise typer.Exit(FAILED)

    help_of_paths = EvalConfig.model_fields["paths"].description
    kind = Annotated[list[str], typer.Argument(help=help_of_paths)]
    add_flags(command, flags, first=[inspect.Parameter("paths", inspect.Parameter.KEYWORD_ONLY, annotation=kind)])
    return command
