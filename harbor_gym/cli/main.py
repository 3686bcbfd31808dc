"""The console command ``harbor-gym``. Prints and parses; what it shows is computed elsewhere."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym import __version__
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskSourceError, UsageError

if TYPE_CHECKING:
    from harbor_gym._runtime.cache import CacheEntry
    from harbor_gym.checking import CheckPlan, TaskCheck
    from harbor_gym.tasks import SourcedTask

FAILED = 1
"""Exit code: the answer is no."""

MISUSED = 2
"""Exit code: wrong arguments or something missing; nothing was started."""

UNPROVEN = 3
"""Exit code of ``check``: nothing is wrong with any task, but some have no solution that would show it."""

app = typer.Typer(
    name="harbor-gym",
    help="Harbor tasks as reinforcement-learning environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; the console script's entry point."""
    app(prog_name="harbor-gym")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"harbor-gym {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def check(
    paths: Annotated[list[Path] | None, typer.Argument(help="Task directories, or directories of tasks.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="git+URL@COMMIT#path, org/name@ref, or a path; may be repeated.")
    ] = None,
    registry_path: Annotated[Path | None, typer.Option(help="registry.json to look names up in.")] = None,
    env: Annotated[
        str, typer.Option("--env", help="Sandbox: local, docker, any Harbor environment type, or module.path:Class.")
    ] = "docker",
    repeat: Annotated[int, typer.Option(min=1, help="Runs of the oracle and of doing nothing: do they agree?")] = 2,
    forge: Annotated[bool, typer.Option(help="Also try to be rewarded without doing the task.")] = True,
    reward_key: Annotated[str | None, typer.Option(help="Which of the verifier's rewards counts.")] = None,
    reward_function: Annotated[
        str | None, typer.Option(help="Or all of them: mean, min, max, sum, or module.path:function.")
    ] = None,
    sandbox_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the sandbox's class; may be repeated.")
    ] = None,
    verify_paths: Annotated[
        str, typer.Option(help="Pristine view: auto (the task's, or proposed), off, or paths with commas between.")
    ] = "auto",
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks checked at the same time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per task.")] = False,
    trials_dir: Annotated[Path | None, typer.Option(help="Keep the trials' folders here.")] = None,
) -> None:
    """Check that each task's oracle scores 1.0, that doing nothing and forging score 0.0, and that runs agree.

    Exit status: 0 all tasks are ok; 3 nothing is wrong, but some are unproven, for they have no solution; 1 something
    is wrong; 2 misuse.
    """
    from harbor_gym.checking import CheckPlan, Verdict
    from harbor_gym.checking.report import as_object
    from harbor_gym.episode.grading.rewards import reward_function as require_function
    from harbor_gym.sandboxes import environment_config, parse_options, preflight
    from harbor_gym.tasks import resolve_tasks
    from harbor_gym.verify_paths import parse_verify_paths

    with _one_line_errors(), _quiet_harbor():
        carried = parse_verify_paths(verify_paths)
        sources = [*(paths or ()), *(task or ())]
        if not sources:
            raise UsageError("say what to check: a directory, or --task git+URL@COMMIT#path or org/name@ref")
        tasks = asyncio.run(resolve_tasks(sources, registry_path=registry_path))
        environment = environment_config(env, options=parse_options(sandbox_option or ()))
        require_function(reward_key, reward_function)
        preflight(environment)
    with _folder(trials_dir) as folder, _quiet_harbor(), warnings.catch_warnings():
        # What Harbor warns of is the task author's business elsewhere; here a table is printed.
        warnings.simplefilter("ignore", UserWarning)
        plan = CheckPlan(
            environment,
            folder,
            repeat=repeat,
            try_exploits=forge,
            reward_key=reward_key,
            reward_function=reward_function,
            verify_paths=carried,
        )
        checks = asyncio.run(_check_all(tasks, plan, concurrency, table=not as_json))
    if as_json:
        typer.echo(json.dumps([as_object(item) for item in checks], indent=2))
    if not all(item.ok for item in checks):
        raise typer.Exit(UNPROVEN if all(item.ok or item.verdict is Verdict.UNPROVEN for item in checks) else FAILED)


async def _check_all(
    tasks: Sequence[SourcedTask], plan: CheckPlan, concurrency: int, *, table: bool
) -> list[TaskCheck]:
    from harbor_gym.checking import check_tasks
    from harbor_gym.checking.report import remarks, table_head, table_row

    width = max(len("task"), *(len(task.name) for task in tasks))
    if not table:
        return await check_tasks(tasks, plan, concurrency=concurrency)
    typer.echo(table_head(width))
    checks = await check_tasks(
        tasks, plan, concurrency=concurrency, on_checked=lambda item: typer.echo(table_row(item, width))
    )
    for line in (line for item in checks for line in remarks(item)):
        typer.echo(line, err=True)
    return checks


@contextmanager
def _folder(wanted: Path | None) -> Generator[Path]:
    """Give the folder that the user wants, or a temporary one."""
    if wanted is not None:
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("check"), ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


@app.command("check-sandbox")
def check_sandbox(
    env: Annotated[
        str, typer.Option("--env", help="Sandbox: local, docker, any Harbor environment type, or module.path:Class.")
    ] = "docker",
    only: Annotated[list[str] | None, typer.Option(help="A behaviour, or a family of them; may be repeated.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Behaviours checked at the same time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with every behaviour's outcome.")] = False,
) -> None:
    """Check that a kind of sandbox does what episodes rely on, in sandboxes started for that."""
    from harbor_gym import testing

    with _one_line_errors(), _quiet_harbor():
        _preflight(env)
        report = asyncio.run(testing.check_sandbox(env, only=only or None, concurrency=concurrency))
    typer.echo(json.dumps(report.as_object(), indent=2) if as_json else str(report))
    if not report.ok:
        raise typer.Exit(FAILED)


@app.command()
def doctor(
    env: Annotated[str | None, typer.Option("--env", help="Only what this kind of sandbox needs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Show what can be used on this machine, and what would get the rest. Exit code 0: a sandbox can be started."""
    from harbor_gym.doctor import examine, usable

    with _one_line_errors(), _quiet_harbor():
        findings = examine(env)
    kinds = usable(findings)
    if as_json:
        typer.echo(json.dumps({"usable": kinds, "findings": [dataclasses.asdict(item) for item in findings]}, indent=2))
    else:
        for item in findings:
            state = "ok" if item.ok else "MISSING" if item.is_needed else "missing"
            fix = f" -> {item.fix}" if item.fix else ""
            typer.echo(f"{item.area:<8}{item.what:<32}{state:<9}{item.note}{fix}".rstrip())
        for kind, is_usable in kinds.items():
            typer.echo(f"--env {kind} {'can' if is_usable else 'can NOT'} be used")
    if not any(kinds.values()):
        raise typer.Exit(FAILED)


@app.command()
def base(
    docker: Annotated[
        str | None,
        typer.Option("--docker", metavar="REF", help="Give Docker the stand-in for this image."),
    ] = None,
) -> None:
    """Build a base image from packages of Debian or Ubuntu alone, for machines that reach no image registry.

    The base stands in for an image that can't be pulled. It is not that image: what it lacks, it lacks.
    """
    from harbor_gym.sandboxes.images import debian_base

    with _one_line_errors():
        if docker is None:
            typer.echo(asyncio.run(debian_base.ensure_base_tar()))
            return
        asyncio.run(debian_base.import_into_docker(docker))
    typer.echo(
        f"Docker has {docker}. If it had none before, this one is a stand-in made from packages "
        "(label harbor_gym.substitute=mmdebstrap), not the real image.",
        err=True,
    )


@app.command()
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Remove also the tasks' images that Docker keeps and no container uses.")
    ] = False,
) -> None:
    """Remove what killed processes left on this machine: containers, networks, volumes, folders, control groups.

    Nothing of a living process or of another machine is touched, nor anything that harbor-gym did not make.
    """
    from harbor_gym.sandboxes import reaper

    found = reaper.find_leftovers() + (reaper.find_images() if images else [])
    for item in found:
        typer.echo(f"{item.kind:<10} {item.name}")
    refusals = [] if dry_run else reaper.remove(found)
    for refusal in refusals:
        typer.echo(f"not removed: {refusal}", err=True)
    if refusals:
        raise typer.Exit(FAILED)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a training run, also of one that goes on.")],
    output: Annotated[Path | None, typer.Option(help="File to write. [default: report.html in that folder]")] = None,
    episodes: Annotated[int, typer.Option(min=0, help="Episodes to put into it; every batch gives some.")] = 400,
    megabytes: Annotated[int, typer.Option(min=1, help="Text and recordings to put into it.")] = 64,
) -> None:
    """Write a training run as one HTML file: curves, batches, and every episode turn by turn with its recording."""
    from harbor_gym.report import write_page

    with _one_line_errors():
        page = write_page(run_dir, output, max_episodes=episodes, max_bytes=megabytes << 20)
    left_out = page.found - page.shown
    rest = f"; {left_out} left out (--episodes, --megabytes)" if left_out else ""
    typer.echo(f"{page.path}: {page.shown} episodes{rest}")


cache = typer.Typer(help="Show and prune what was built and is kept between runs.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def cache_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per entry.")] = False,
) -> None:
    """Show what the cache holds, the least recently used first."""
    from harbor_gym._runtime.cache import cache_dir, entries

    found = entries()
    if as_json:
        typer.echo(json.dumps([{**dataclasses.asdict(item), "path": str(item.path)} for item in found], indent=2))
        return
    for item in found:
        typer.echo(_cache_row(item))
    typer.echo(f"{_megabytes(sum(item.size_bytes for item in found))}  in {cache_dir()}")


@cache.command("prune")
def cache_prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="What was not used for so long: 30m, 12h, 7d.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The least recently used, until this is left: 500M, 10G.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every image and base that nothing uses.")] = False,
) -> None:
    """Remove images and bases that no running sandbox stands on. They are built again when they are needed."""
    from harbor_gym._runtime.cache import prune

    with _one_line_errors():
        if not (everything or older_than or max_size):
            raise UsageError("say what to prune: --older-than AGE, --max-size SIZE or --all")
        gone = prune(
            older_than_sec=_quantity(older_than, {"m": 60, "h": 3600, "d": 86_400}, "--older-than")
            if older_than
            else None,
            max_bytes=_quantity(max_size, {"M": 1 << 20, "G": 1 << 30}, "--max-size") if max_size else None,
            everything=everything,
        )
    for item in gone:
        typer.echo(_cache_row(item))
    typer.echo(f"{_megabytes(sum(item.size_bytes for item in gone))}  removed")


def _cache_row(item: CacheEntry) -> str:
    used = datetime.fromtimestamp(item.last_used).isoformat(sep=" ", timespec="minutes")
    state = "in use" if item.in_use else "      "
    return (
        f"{_megabytes(item.size_bytes)}  {used}  {state}  {item.kind:<8}  {item.path.name[:12]}  {item.what}".rstrip()
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):8.1f} MiB"


def _quantity(text: str, units: dict[str, int], option: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isdecimal():
        raise UsageError(f"{option} takes a whole number and one of {', '.join(units)}, got {text!r}")
    return int(number) * units[unit]


bench = typer.Typer(help="Measure the terminal, side by side with Harbor's own.", no_args_is_help=True)
app.add_typer(bench, name="bench")

type _BenchEnv = Annotated[str, typer.Option("--env", help="Sandbox, as `check` takes it.")]


@bench.command("step")
def bench_step(
    env: _BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken in every terminal.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with rows and summary.")] = False,
) -> None:
    """Time single steps over each transport and with Harbor's TmuxSession, in one sandbox, taking turns."""
    from harbor_gym.bench import bench_steps
    from harbor_gym.bench.report import format_table

    def show_progress(done: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done}/{repeat} repetitions", err=True, nl=done == repeat)

    with _one_line_errors(), _quiet_harbor():
        _preflight(env)
        report = asyncio.run(bench_steps(env, repeat=repeat, on_progress=show_progress))
    typer.echo(json.dumps(report.as_object(), indent=2) if as_json else format_table(report))
    if not report.is_right:
        raise typer.Exit(FAILED)


@bench.command("truth")
def bench_truth(
    env: _BenchEnv = "local",
    rootfs: Annotated[
        Path | None, typer.Option(help="Root file system (local): a directory or tar archive with more programs.")
    ] = None,
    session: Annotated[list[str] | None, typer.Option(help="Only sessions of this name; may be repeated.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Sessions at the same time.")] = 4,
    repeat: Annotated[int, typer.Option(min=1, help="Times that every session is taken.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Judge each return of the terminal by what the pane wrote afterwards, in many programs."""
    from harbor_gym.bench import started_environment, truth
    from harbor_gym.bench.truth_sessions import make_sessions

    def show_progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done}/{total} sessions", err=True, nl=done == total)

    chosen = [item for item in make_sessions() if not session or item.name in session]
    options = {} if rootfs is None else {"rootfs": str(rootfs.resolve())}

    async def judge() -> truth.TruthReport:
        async with started_environment(env, options=options) as environment:
            return await truth.bench_truth(
                environment, chosen, sandbox=env, at_once=at_once, repeat=repeat, on_progress=show_progress
            )

    with _one_line_errors(), _quiet_harbor():
        if not chosen:
            names = ", ".join(item.name for item in make_sessions())
            raise UsageError(f"no session has that name; there are: {names}")
        _preflight(env)
        report = asyncio.run(judge())
    typer.echo(json.dumps(report.as_object(), indent=2) if as_json else truth.format_truth(report))


@bench.command("concurrency")
def bench_concurrency(
    env: _BenchEnv = "local",
    terminals: Annotated[int, typer.Option(min=1, help="Terminals at once, each in a sandbox of its own.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps that each terminal takes.")] = 10,
    transport: Annotated[str | None, typer.Option(help="Force a transport; by default the terminal chooses.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Take steps in many terminals at once: none may be lost, and the event loop must stay free."""
    from harbor_gym import bench as benchmarks

    with _one_line_errors(), _quiet_harbor():
        _preflight(env)
        report = asyncio.run(benchmarks.bench_concurrency(env, terminals=terminals, steps=steps, transport=transport))
    found = report.as_object()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k:<18}{v}" for k, v in found.items()))
    if not report.is_right:
        raise typer.Exit(FAILED)


@bench.command("vector")
def bench_vector(
    env: _BenchEnv = "local",
    num_envs: Annotated[int, typer.Option(min=2, max=100, help="Sub-environments at once.")] = 32,
    repeat: Annotated[int, typer.Option(min=1, help="Times that each kind of step is taken.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Step many sub-environments of `gym.make_vec` at once, and a single one in between."""
    from harbor_gym.bench.vector import bench_vector

    with _one_line_errors(), _quiet_harbor():
        _preflight(env)
        report = bench_vector(env, num_envs=num_envs, repeat=repeat)
    found = report.as_object()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(f"{k:<20}{v}" for k, v in found.items()))


@bench.command("reset")
def bench_reset(
    env: _BenchEnv = "local",
    at_once: Annotated[
        list[int] | None, typer.Option(min=2, help="Sandboxes at once, repeatable. [default: 8, and 64 for local]")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Times that a single sandbox is measured.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Time create, first prompt and close; from a warm pool too; beside the sandbox's own peers."""
    from harbor_gym.bench.reset import bench_reset, format_reset

    with _one_line_errors(), _quiet_harbor():
        _preflight(env)
        fleets = at_once or ([8, 64] if env == "local" else [8])
        report = asyncio.run(bench_reset(env, at_once=fleets, repeat=repeat))
    typer.echo(json.dumps(report.as_object(), indent=2) if as_json else format_reset(report))


@bench.command("episode")
def bench_episode(
    env: _BenchEnv = "local",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of ours.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    harbor_episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of Harbor's Terminus-2 session on Docker, for comparison; 0 is none.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Run a scripted episode of five steps with its verifier, many at once, and count episodes a minute."""
    from harbor_gym.bench import episode as benchmark

    with _one_line_errors(), _quiet_harbor():
        for name in {env, *(["docker"] if harbor_episodes else [])}:
            _preflight(name)
        report = asyncio.run(
            benchmark.bench_episode(env, episodes=episodes, at_once=at_once, harbor_episodes=harbor_episodes)
        )
    typer.echo(json.dumps(report.as_object(), indent=2) if as_json else benchmark.format_episodes(report))
    if not report.is_right:
        raise typer.Exit(FAILED)


def _preflight(env: str) -> None:
    from harbor_gym.sandboxes import environment_config, preflight

    preflight(environment_config(env))


@contextmanager
def _quiet_harbor() -> Generator[None]:
    """Keep Harbor's progress, which it reports through loggers, off the terminal."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _one_line_errors() -> Generator[None]:
    """Turn our errors into one line on stderr and an exit code."""
    try:
        yield
    except HarborGymError as exc:
        code = MISUSED if isinstance(exc, UsageError | MissingDependencyError | TaskSourceError) else FAILED
        print(f"error: {exc}", file=sys.stderr)
        raise typer.Exit(code) from None
