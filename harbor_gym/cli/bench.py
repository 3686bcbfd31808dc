"""``harbor-gym bench``: measurements of the terminal, of sandboxes and of whole episodes."""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, preflight_by_name, quiet_harbor
from harbor_gym.errors import UsageError
from harbor_gym.types import ExecutorKind

if TYPE_CHECKING:
    from harbor_gym.bench.report import BenchReport

bench = typer.Typer(cls=PlainGroup, help="Measure the terminal, side by side with Harbor's own.", no_args_is_help=True)
_BenchEnv = Annotated[str, typer.Option("--env", help="Sandbox, as `check` takes it.")]


def _print[R: BenchReport](report: R, format_report: Callable[[R], str], as_json: bool) -> None:
    echo(json.dumps(report.as_object(), indent=2) if as_json else format_report(report))
    if not report.is_right:
        raise typer.Exit(FAILED)


def _show(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        echo(f"{done}/{total} {what}", err=True, nl=done == total, before="\r")


@bench.command("step")
def bench_step(
    env: _BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken in every terminal.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with rows and summary.")] = False,
) -> None:
    """Time single steps over each transport and with Harbor's TmuxSession, in one sandbox, taking turns."""
    from harbor_gym.bench import bench_steps
    from harbor_gym.bench.report import format_table

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = asyncio.run(bench_steps(env, repeat=repeat, on_progress=partial(_show, "repetitions", total=repeat)))
    _print(report, format_table, as_json)


@bench.command("all")
def bench_all(
    env: _BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken; other sizes go with it.")] = 10,
) -> None:
    """Run step, reset, episode, concurrency, vector and gateway; print one JSON object that also describes the machine.

    The page on performance is drawn from it. What else the machine does moves every figure: its load is in there.
    """
    from harbor_gym.bench.everything import bench_everything

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = bench_everything(env, scale=repeat, on_progress=lambda name: echo(name, err=True))
    echo(json.dumps(report, indent=1))


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
    from harbor_gym.bench import started_environment
    from harbor_gym.bench.truth import measure as truth
    from harbor_gym.bench.truth.sessions import make_sessions

    chosen = [item for item in make_sessions() if not session or item.name in session]
    options = {} if rootfs is None else {"rootfs": str(rootfs.resolve())}

    async def judge() -> truth.TruthReport:
        async with started_environment(env, options=options) as environment:
            return await truth.bench_truth(
                environment, chosen, sandbox=env, at_once=at_once, repeat=repeat, on_progress=partial(_show, "sessions")
            )

    with one_line_errors(), quiet_harbor():
        if not chosen:
            names = ", ".join(item.name for item in make_sessions())
            raise UsageError(f"no session has that name; there are: {names}")
        preflight_by_name(env)
        report = asyncio.run(judge())
    _print(report, truth.format_truth, as_json)


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
    from harbor_gym.bench.report import format_fields

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = asyncio.run(benchmarks.bench_concurrency(env, terminals=terminals, steps=steps, transport=transport))
    _print(report, format_fields, as_json)


@bench.command("vector")
def bench_vector(
    env: _BenchEnv = "local",
    num_envs: Annotated[int, typer.Option(min=2, max=100, help="Sub-environments at once.")] = 32,
    repeat: Annotated[int, typer.Option(min=1, help="Times that each kind of step is taken.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Step many sub-environments of `gym.make_vec` at once, and a single one in between."""
    from harbor_gym.bench.report import format_fields
    from harbor_gym.bench.vector import bench_vector

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = bench_vector(env, num_envs=num_envs, repeat=repeat)
    _print(report, format_fields, as_json)


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

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        fleets = at_once or ([8, 64] if env == "local" else [8])
        report = asyncio.run(bench_reset(env, at_once=fleets, repeat=repeat))
    _print(report, format_reset, as_json)


@bench.command("singularity")
def bench_singularity(
    at_once: Annotated[int, typer.Option(min=2, help="Sandboxes at once.")] = 8,
    repeat: Annotated[int, typer.Option(min=1, help="Resets, and repetitions of every step.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Time resets and steps of apptainer sandboxes beside Harbor's own singularity, on one image, taking turns."""
    from harbor_gym.bench import singularity as benchmark

    with one_line_errors(), quiet_harbor():
        preflight_by_name("apptainer")
        show = partial(_show, "repetitions", total=repeat)
        report = asyncio.run(benchmark.bench_singularity(at_once=at_once, repeat=repeat, on_progress=show))
    _print(report, benchmark.format_singularity, as_json)


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

    with one_line_errors(), quiet_harbor():
        for name in {env, *(["docker"] if harbor_episodes else [])}:
            preflight_by_name(name)
        report = asyncio.run(
            benchmark.bench_episode(env, episodes=episodes, at_once=at_once, harbor_episodes=harbor_episodes)
        )
    _print(report, benchmark.format_episodes, as_json)


@bench.command("gateway")
def bench_gateway(
    sessions: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 64,
    calls: Annotated[int, typer.Option(min=1, help="Calls of each conversation.")] = 20,
    sampler_sec: Annotated[float, typer.Option(min=0.0, help="Time that the sampler takes for an answer.")] = 0.05,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Calls due in a second, of all together. [default: at most 100]")
    ] = None,
    litellm: Annotated[bool, typer.Option("--litellm", help="Measure litellm's client too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Time growing conversations through the gateway, and the same with the sampler alone, at a fixed rate."""
    from harbor_gym.bench.gateway import measure as benchmark

    with one_line_errors():
        report = asyncio.run(
            benchmark.bench_gateway(
                sessions=sessions, calls=calls, sampler_sec=sampler_sec, calls_per_sec=rate, with_litellm=litellm
            )
        )
    _print(report, benchmark.format_gateway, as_json)


@bench.command("scale")
def bench_scale(
    env: _BenchEnv = "local",
    sandboxes: Annotated[int, typer.Option(min=1, help="Sandboxes that are live at the same time.")] = 64,
    starts_at_once: Annotated[int, typer.Option(min=1, help="Sandboxes that start at the same time.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Hold many live sandboxes: time to the first prompt, event-loop lag, memory, time to close, none lost."""
    from harbor_gym.bench.report import format_fields
    from harbor_gym.bench.scale import fleet

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = asyncio.run(fleet.bench_scale(env, sandboxes=sandboxes, starts_at_once=starts_at_once))
    _print(report, format_fields, as_json)


@bench.command("soak")
def bench_soak(
    env: _BenchEnv = "local",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, one after the other.")] = 500,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    trouble: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share that is cancelled, killed, or fills its disk.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses them.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Run short episodes with failures thrown in: each accounted for, and nothing left at the end."""
    from harbor_gym.bench.scale import soak

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        show = partial(_show, "episodes", total=episodes)
        report = asyncio.run(
            soak.bench_soak(env, episodes=episodes, at_once=at_once, trouble_share=trouble, seed=seed, on_progress=show)
        )
    _print(report, soak.format_soak, as_json)


@bench.command("executors")
def bench_executors(
    env: _BenchEnv = "local",
    groups: Annotated[int, typer.Option(min=1, help="Groups to play in each way.")] = 32,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes of a group, side by side.")] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Groups at the same time.")] = 2,
    kinds: Annotated[
        list[ExecutorKind] | None, typer.Option("--executor", help="Only these; may be repeated. [default: all]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Play groups of short episodes in this process, in others, and by Ray's workers."""
    from harbor_gym.bench import executors as benchmark

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = benchmark.bench_executors(
            env, groups=groups, group_size=group_size, workers=workers, kinds=tuple(kinds or ExecutorKind)
        )
    _print(report, benchmark.format_executors, as_json)


@bench.command("trl")
def bench_trl(
    slots: Annotated[int, typer.Option(min=1, help="Environments of a training step.")] = 16,
    start_delay_sec: Annotated[float, typer.Option(min=0.0, help="How much later each local sandbox starts.")] = 2.0,
    resets: Annotated[int, typer.Option(min=0, help="Then reset so often and count what is left; 0 does not.")] = 640,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Time a training step's calls of TRL's environments, ours and those of TRL's own module for Harbor."""
    from harbor_gym.bench import trl as benchmark

    with one_line_errors(), quiet_harbor():
        preflight_by_name("local")
        step = benchmark.bench_step(slots=slots, start_delay_sec=start_delay_sec)
        many = benchmark.bench_resets(resets=resets, slots=slots) if resets else None
    if as_json:
        echo(json.dumps({"step": step.as_object(), "resets": many and many.as_object()}, indent=2))
    else:
        echo(benchmark.format_step(step))
        if many is not None:
            echo(f"{many.resets} resets in {many.seconds:.1f} s left {len(many.left)} folders, mounts, processes")
    if many is not None and not many.is_right:
        raise typer.Exit(FAILED)
