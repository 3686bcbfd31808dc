"""``harbor-gym bench``: measurements of the terminal, of sandboxes and of whole episodes."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, preflight_by_name, quiet_harbor

if TYPE_CHECKING:
    from harbor_gym.bench.report import BenchReport

bench = typer.Typer(cls=PlainGroup, help="Measure the terminal, side by side with Harbor's own.", no_args_is_help=True)
BenchEnv = Annotated[str, typer.Option("--env", help="Sandbox, as `check` takes it.")]


def print_report[R: BenchReport](report: R, format_report: Callable[[R], str], as_json: bool) -> None:
    """Print a report, and exit with ``FAILED`` if one of its results was wrong."""
    echo(json.dumps(report.as_object(), indent=2) if as_json else format_report(report))
    if not report.is_right:
        raise typer.Exit(FAILED)


def show_progress(what: str, done: int, total: int) -> None:
    """Show a counter on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        echo(f"{done}/{total} {what}", err=True, nl=done == total, before="\r")


@contextlib.contextmanager
def measuring(env: str) -> Generator[None]:
    """Check that a sandbox can start here, then run the block; errors are one line, and Harbor logs nothing."""
    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        yield


@bench.command("step")
def bench_step(
    env: BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken in every terminal.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with rows and summary.")] = False,
) -> None:
    """Time single steps over each transport and with Harbor's TmuxSession, in one sandbox, taking turns."""
    from harbor_gym.bench.report import format_table
    from harbor_gym.bench.steps import bench_steps

    with measuring(env):
        report = asyncio.run(
            bench_steps(env, repeat=repeat, on_progress=partial(show_progress, "repetitions", total=repeat))
        )
    print_report(report, format_table, as_json)


@bench.command("reset")
def bench_reset(
    env: BenchEnv = "local",
    at_once: Annotated[
        list[int] | None, typer.Option(min=2, help="Sandboxes at once, repeatable. [default: 8, and 64 for local]")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Times that a single sandbox is measured.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Time create, first prompt and close; from a warm pool too; beside the sandbox's own peers."""
    from harbor_gym.bench.reset import bench_reset, format_reset

    with measuring(env):
        fleets = at_once or ([8, 64] if env == "local" else [8])
        report = asyncio.run(bench_reset(env, at_once=fleets, repeat=repeat))
    print_report(report, format_reset, as_json)


@bench.command("episode")
def bench_episode(
    env: BenchEnv = "local",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of ours.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    harbor_episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of Harbor's Terminus-2 session on Docker, for comparison; 0 is none.")
    ] = 0,
    phases: Annotated[
        int, typer.Option(min=0, help="Episodes one after the other, whose phases are measured (Linux); 0 is none.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Run a scripted episode of five steps with its verifier, many at once, and count episodes a minute."""
    from harbor_gym.bench import episode as benchmark

    with one_line_errors(), quiet_harbor():
        for name in {env, *(["docker"] if harbor_episodes else [])}:
            preflight_by_name(name)
        report = asyncio.run(
            benchmark.bench_episode(
                env, episodes=episodes, at_once=at_once, harbor_episodes=harbor_episodes, phase_episodes=phases
            )
        )
    print_report(report, benchmark.format_episodes, as_json)
