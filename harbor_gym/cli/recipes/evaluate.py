"""The command behind ``recipes/eval.py``."""

import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harbor_gym import sandboxes
from harbor_gym.adapters.tinker.policies import EvalConfig, EvaluatedPolicy, find_policy
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, flags_of, given_values, make_config
from harbor_gym.config import TerminalEnvConfig

if TYPE_CHECKING:
    from harbor_gym.evaluation import EpisodeResult, Report

MAX_TURNS = 30


def evaluate_policy(config: EvalConfig) -> "Report":
    """Play episodes of each task with a policy. Blocks until all are over; each episode's outcome is printed.

    Raises:
        HarborGymError: A setting, a task or the sandbox can't be used, before anything is started; or the service of
            the policy failed.
    """
    from harbor_gym.evaluation import summarize
    from harbor_gym.tasks import find_tasks

    sandboxes.preflight(sandboxes.environment_config(config.env.sandbox))
    tasks = [config.env.model_copy(update={"task_dir": task}) for task in find_tasks(list(config.paths))]
    results = asyncio.run(_play(config, find_policy(config), tasks))
    ks = [k for k in config.attempts if 1 <= k <= config.episodes]
    return summarize(results, threshold=config.threshold, ks=ks)


def eval_app(*, program: str) -> typer.Typer:
    """Return a command line made from the fields of ``EvalConfig``, which evaluates.

    Args:
        program: What its error messages begin with.
    """
    flags = flags_of(EvalConfig, _SPELLING)

    def command(context: typer.Context, paths: list[Path], **values: Any) -> None:
        with common.one_line_errors(program):
            given = given_values(flags, context, values)
            env = {"task_dir": paths[0], "max_turns": MAX_TURNS, **given.get("env", {})}
            config = make_config(EvalConfig, {**given, "paths": paths, "env": env}, flags)
            report = evaluate_policy(config)
        _show(report, config.output)

    help_of_paths = EvalConfig.model_fields["paths"].description
    kind = Annotated[list[Path], typer.Argument(help=help_of_paths)]
    add_flags(command, flags, first=[inspect.Parameter("paths", inspect.Parameter.KEYWORD_ONLY, annotation=kind)])
    app = common.new_app()
    app.command(help="Play episodes of each task with a policy, and show how many it solves.")(command)
    return app


async def _play(
    config: EvalConfig, policy: EvaluatedPolicy, tasks: Sequence[TerminalEnvConfig]
) -> "list[EpisodeResult]":
    """Serve the policy and play."""
    from harbor_gym.embedded.service import sampling_client
    from harbor_gym.evaluation import Player, evaluate

    async with sampling_client(policy, typer.echo) as client:
        from harbor_gym.adapters.tinker.sampling import codec_for, tinker_sampler

        codec = await asyncio.to_thread(codec_for, policy.renderer_name, policy.model_name)
        sample = tinker_sampler(client, stop=codec.stop, max_tokens=policy.max_tokens, temperature=config.temperature)
        player = Player(
            codec=codec,
            sample=sample,
            max_tokens=policy.max_tokens,
            max_context_tokens=policy.max_context_tokens,
            retries=config.retries,
            transcripts_dir=config.output / "transcripts" if config.output is not None else None,
        )
        return await evaluate(
            tasks, player, episodes=config.episodes, concurrency=config.concurrency, on_episode=_show_episode
        )


def _show_episode(result: "EpisodeResult") -> None:
    """Print a line an episode."""
    outcome = result.error or f"{result.end_reason}, reward {result.reward:g}"
    typer.echo(f"{result.task} {result.episode}: {outcome}, {result.turns} turns, {result.seconds:.1f} s")


def _show(report: "Report", output: Path | None) -> None:
    """Print the table, and write the JSON where a folder is given."""
    from harbor_gym.evaluation import format_report

    typer.echo(format_report(report))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "eval.json").write_text(json.dumps(report.as_object(), indent=1) + "\n", encoding="utf-8")
        typer.echo(f"written: {output / 'eval.json'}")


_SPELLING = common.spelling(
    names={"paths": None},
    defaults={"env.max_turns": str(MAX_TURNS), "max_tokens": "the run's"},
    with_commas=("attempts",),
)
