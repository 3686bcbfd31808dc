"""Measurements of the terminal, of sandboxes and of whole episodes: ``make bench ARGS="step --env local"``."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.exits import run_and_exit
from harbor_gym.cli.plain_help import HELP_NAMES, PlainGroup
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, preflight_by_name, quiet_harbor
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.types import ExecutorKind
from tests.benchmarks import (
    audit,
    concurrency,
    episode,
    executors,
    fork,
    memory,
    network,
    reset,
    services,
    singularity,
    size,
    tokens,
    vector,
)
from tests.benchmarks.everything import bench_everything
from tests.benchmarks.gateway import measure as gateway
from tests.benchmarks.report import BenchReport, format_fields
from tests.benchmarks.sandbox import started_environment
from tests.benchmarks.scale import fleet, soak
from tests.benchmarks.steps import bench_steps, format_table
from tests.benchmarks.truth import measure as truth
from tests.benchmarks.truth.sessions import make_sessions
from tests.helpers.engines import use_unpacked_engines
from tests.helpers.paths import ROOT

benchmarks = typer.Typer(
    cls=PlainGroup,
    help="Measure the terminal, sandboxes and episodes, side by side with Harbor's own.",
    no_args_is_help=True,
    add_completion=False,
    context_settings=HELP_NAMES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

BenchEnv = Annotated[str, typer.Option("--env", help="Sandbox, as `harbor-gym check` takes it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object.")]


def print_report[R: BenchReport](report: R, format_report: Callable[[R], str], as_json: bool) -> None:
    """Print a report, and exit with ``FAILED`` if one of its results was wrong."""
    echo(json.dumps(report.as_object(), indent=2) if as_json else format_report(report))
    if not report.is_right:
        raise typer.Exit(FAILED)


def show_progress(what: str, done: int, total: int) -> None:
    """Show a counter on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{total} {what}" + "\n" * (done == total))
        sys.stderr.flush()


@contextlib.contextmanager
def measuring(*envs: str) -> Generator[None]:
    """Check that sandboxes can start here, then run the block; errors are one line, and Harbor logs nothing."""
    with one_line_errors(), quiet_harbor():
        for env in envs:
            preflight_by_name(env)
        yield


@benchmarks.command("all")
def run_all(
    env: BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken; other sizes go with it.")] = 10,
) -> None:
    """Run step, reset, episode, concurrency, vector and gateway; print one JSON object that also describes the machine.

    The page on performance is drawn from it. Other work of the machine moves every figure: its load is in there.
    """
    with measuring(env):
        report = bench_everything(env, scale=repeat, on_progress=lambda name: echo(name, err=True))
    echo(json.dumps(report, indent=1))


@benchmarks.command("step")
def run_step(
    env: BenchEnv = "local",
    repeat: Annotated[int, typer.Option(min=1, help="Times that every step is taken in every terminal.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Time single steps over each transport and with Harbor's TmuxSession, in one sandbox, taking turns."""
    with measuring(env):
        show = partial(show_progress, "repetitions", total=repeat)
        report = asyncio.run(bench_steps(env, repeat=repeat, on_progress=show))
    print_report(report, format_table, as_json)


@benchmarks.command("reset")
def run_reset(
    env: BenchEnv = "local",
    at_once: Annotated[
        list[int] | None, typer.Option(min=2, help="Sandboxes at once, repeatable. [default: 8, and 64 for local]")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Times that a single sandbox is measured.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Time create, first prompt and close; from a warm pool too; beside the sandbox's own peers."""
    with measuring(env):
        fleets = at_once or ([8, 64] if env == "local" else [8])
        report = asyncio.run(reset.bench_reset(env, at_once=fleets, repeat=repeat))
    print_report(report, reset.format_reset, as_json)


@benchmarks.command("episode")
def run_episode(
    env: BenchEnv = "local",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of ours.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    harbor_episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of Harbor's Terminus-2 session on Docker, for comparison; 0 is none.")
    ] = 0,
    phases: Annotated[
        int, typer.Option(min=0, help="Episodes one after the other, whose phases are measured (Linux); 0 is none.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a scripted episode of five steps with its verifier, many at once, and count episodes a minute."""
    with measuring(*{env, *(["docker"] if harbor_episodes else [])}):
        report = asyncio.run(
            episode.bench_episode(
                env, episodes=episodes, at_once=at_once, harbor_episodes=harbor_episodes, phase_episodes=phases
            )
        )
    print_report(report, episode.format_episodes, as_json)


@benchmarks.command("memory")
def run_memory(
    env: BenchEnv = "local",
    count: Annotated[int, typer.Option(min=1, help="Environments of devops_task, all at their first screen.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Measure the memory of one more idle environment: in this process, and in its sandbox on this machine."""
    with measuring(env):
        config = TerminalEnvConfig(task_dir=ROOT / "tasks/devops_task", sandbox=env)
        idle = asyncio.run(memory.measure_idle_memory(config, count=count))
    print_report(idle, memory.format_idle, as_json)


@benchmarks.command("services")
def run_services(
    repeat: Annotated[int, typer.Option(min=1, help="Episodes of each way.")] = 10,
    with_docker: Annotated[bool, typer.Option("--docker/--no-docker", help="Measure Docker Compose as well.")] = True,
    as_json: AsJson = False,
) -> None:
    """Time the start of an episode with three services, beside one container and Docker Compose. As root."""
    with measuring("local", *(["docker"] if with_docker else [])):
        report = asyncio.run(services.measure_services(repeat, with_docker=with_docker))
    print_report(report, services.format_services, as_json)


@benchmarks.command("network")
def run_network(
    repeat: Annotated[int, typer.Option(min=1, help="Local sandboxes of each way, by turns.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Time what a local sandbox with an allowlist reaches, by name and by address, beside a public network. As root."""
    with measuring("local"):
        report = asyncio.run(network.measure_network(repeat))
    print_report(report, network.format_network, as_json)


@benchmarks.command("truth")
def run_truth(
    env: BenchEnv = "local",
    rootfs: Annotated[
        Path | None, typer.Option(help="Root file system (local) with more programs, see tests/benchmarks/truth.")
    ] = None,
    session: Annotated[list[str] | None, typer.Option(help="Only sessions of this name; may be repeated.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Sessions at the same time.")] = 4,
    repeat: Annotated[int, typer.Option(min=1, help="Times that every session is taken.")] = 1,
    limit_sec: Annotated[
        float | None, typer.Option(min=1.0, help="No session begins after so many seconds; those are left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge each return of the terminal by the pane's later output, in many programs.

    Each session is a line on stderr when it is over; Ctrl-C ends the run with the sessions so far.
    """
    chosen = [item for item in make_sessions() if not session or item.name in session]
    options = {} if rootfs is None else {"rootfs": str(rootfs.resolve())}
    run = truth.TruthRun(
        chosen,
        sandbox=env,
        at_once=at_once,
        repeat=repeat,
        limit_sec=limit_sec,
        on_taken=lambda taken, done, total: echo(truth.format_taken(taken, done, total), err=True),
    )

    async def judge() -> None:
        async with started_environment(env, options=options) as environment:
            await run.take(environment)

    with one_line_errors(), quiet_harbor():
        if not chosen:
            names = ", ".join(item.name for item in make_sessions())
            raise UsageError(f"no session has that name; there are: {names}")
        preflight_by_name(env)
        try:
            asyncio.run(judge())
        except KeyboardInterrupt:
            with contextlib.suppress(typer.Exit):  # the exit code tells of the signal
                print_report(run.report, truth.format_truth, as_json)
            raise
    print_report(run.report, truth.format_truth, as_json)


@benchmarks.command("concurrency")
def run_concurrency(
    env: BenchEnv = "local",
    terminals: Annotated[int, typer.Option(min=1, help="Terminals at once, each in a sandbox of its own.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps that each terminal takes.")] = 10,
    transport: Annotated[str | None, typer.Option(help="Force a transport; by default the terminal chooses.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take steps in many terminals at once: none may be lost, and the event loop must stay free."""
    with measuring(env):
        report = asyncio.run(concurrency.bench_concurrency(env, terminals=terminals, steps=steps, transport=transport))
    print_report(report, format_fields, as_json)


@benchmarks.command("fork")
def run_fork(
    env: BenchEnv = "local",
    turns: Annotated[int, typer.Option(min=2, help="Turns of the episode that is copied.")] = 8,
    copies: Annotated[int, typer.Option(min=2, help="Copies that are made at once.")] = 16,
    repeat: Annotated[int, typer.Option(min=1, help="Times that copies are made.")] = 5,
    cycles: Annotated[
        int | None, typer.Option(min=1, help="Make and close so many copies in turn instead; count what is left.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time a snapshot, a copy and many at once of a running episode, and look at the state of each copy."""
    if cycles is not None:
        with measuring(env):
            show = partial(show_progress, "cycles", total=cycles)
            left = asyncio.run(fork.bench_cycles(env, turns=turns, cycles=cycles, on_progress=show))
        print_report(left, format_fields, as_json)
        return
    with measuring(env):
        report = asyncio.run(fork.bench_fork(env, turns=turns, copies=copies, repeat=repeat))
    print_report(report, fork.format_fork, as_json)


@benchmarks.command("vector")
def run_vector(
    env: BenchEnv = "local",
    num_envs: Annotated[int, typer.Option(min=2, max=100, help="Sub-environments at once.")] = 32,
    repeat: Annotated[int, typer.Option(min=1, help="Times that each kind of step is taken.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Step many sub-environments of `gym.make_vec` at once, and a single one in between."""
    with measuring(env):
        report = vector.bench_vector(env, num_envs=num_envs, repeat=repeat)
    print_report(report, format_fields, as_json)


@benchmarks.command("size")
def run_size(
    env: BenchEnv = "local",
    kinds: Annotated[
        list[str] | None, typer.Option("--part", help=f"{', '.join(size.KINDS)}; may be repeated. [default: all]")
    ] = None,
    sizes: Annotated[
        list[int] | None, typer.Option("--files", min=1, help="Files of a part. [default: 200, 2000 and 20000]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes of tasks of which one part is large, and tell how each figure grows with that part."""
    if unknown := set(kinds or ()).difference(size.KINDS):
        raise typer.BadParameter(f"a task has no part {', '.join(unknown)}; there are: {', '.join(size.KINDS)}")
    with measuring(env):
        chosen, files = kinds or list(size.KINDS), sizes or [200, 2_000, 20_000]
        report = asyncio.run(size.bench_size(env, kinds=chosen, sizes=files, on_progress=partial(echo, err=True)))
    print_report(report, size.format_size, as_json)


@benchmarks.command("audit")
def run_audit(
    env: BenchEnv = "local",
    tasks: Annotated[int, typer.Option(min=20, help="Small tasks; a tenth of them, or half if played, first.")] = 5_000,
    play: Annotated[bool, typer.Option(help="Also play each task.")] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Tasks audited at the same time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Audit many small tasks, and tell how time, memory and disk grow with them."""
    with measuring(*([env] if play else [])):
        report = audit.bench_audit(env, tasks=tasks, plays=play, jobs=jobs, on_progress=partial(echo, err=True))
    print_report(report, audit.format_audit, as_json)


@benchmarks.command("singularity")
def run_singularity(
    at_once: Annotated[int, typer.Option(min=2, help="Sandboxes at once.")] = 8,
    repeat: Annotated[int, typer.Option(min=1, help="Resets, and repetitions of every step.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Time resets and steps of apptainer sandboxes beside Harbor's own singularity, on one image, taking turns."""
    with measuring("apptainer"):
        show = partial(show_progress, "repetitions", total=repeat)
        report = asyncio.run(singularity.bench_singularity(at_once=at_once, repeat=repeat, on_progress=show))
    print_report(report, singularity.format_singularity, as_json)


@benchmarks.command("gateway")
def run_gateway(
    sessions: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 64,
    calls: Annotated[int, typer.Option(min=1, help="Calls of each conversation.")] = 20,
    sampler_sec: Annotated[float, typer.Option(min=0.0, help="Time that the sampler takes for an answer.")] = 0.05,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Calls due in a second, of all together. [default: at most 100]")
    ] = None,
    litellm: Annotated[bool, typer.Option("--litellm", help="Measure litellm's client too.")] = False,
    relay: Annotated[bool, typer.Option("--relay", help="Measure Harbor's inference relay too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time growing conversations through the gateway, and the same with the sampler alone, at a fixed rate."""
    with one_line_errors():
        report = asyncio.run(
            gateway.bench_gateway(
                sessions=sessions,
                calls=calls,
                sampler_sec=sampler_sec,
                calls_per_sec=rate,
                with_litellm=litellm,
                with_relay=relay,
            )
        )
    print_report(report, gateway.format_gateway, as_json)


@benchmarks.command("tokens")
def run_tokens(
    generated: Annotated[int, typer.Option(min=0, help="Generated episodes, beside the contract tests'.")] = 30,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a generated episode.")] = 30,
    door: Annotated[list[str] | None, typer.Option(help="A door; all if none is named.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count at each door the tokens that were sampled, trained, lost, doubled, and trained without being sampled."""
    with measuring():
        report = asyncio.run(
            tokens.bench_tokens(
                generated=generated, turns=turns, doors=door or (), progress=partial(show_progress, "doors")
            )
        )
    print_report(report, tokens.format_tokens, as_json)


@benchmarks.command("scale")
def run_scale(
    env: BenchEnv = "local",
    sandboxes: Annotated[int, typer.Option(min=1, help="Sandboxes that are live at the same time.")] = 64,
    starts_at_once: Annotated[int, typer.Option(min=1, help="Sandboxes that start at the same time.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Hold many live sandboxes: time to the first prompt, event-loop lag, memory, time to close, none lost."""
    with measuring(env):
        report = asyncio.run(fleet.bench_scale(env, sandboxes=sandboxes, starts_at_once=starts_at_once))
    print_report(report, format_fields, as_json)


@benchmarks.command("soak")
def run_soak(
    env: BenchEnv = "local",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, one after the other.")] = 500,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes that run at the same time.")] = 16,
    trouble: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share that is cancelled, killed, or fills its disk.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses them.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run short episodes with failures thrown in: each accounted for, and nothing left at the end."""
    with measuring(env):
        show = partial(show_progress, "episodes", total=episodes)
        report = asyncio.run(
            soak.bench_soak(env, episodes=episodes, at_once=at_once, trouble_share=trouble, seed=seed, on_progress=show)
        )
    print_report(report, soak.format_soak, as_json)


@benchmarks.command("executors")
def run_executors(
    env: BenchEnv = "local",
    groups: Annotated[int, typer.Option(min=1, help="Groups to play in each way.")] = 32,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes of a group, side by side.")] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Groups at the same time.")] = 2,
    kinds: Annotated[
        list[ExecutorKind] | None, typer.Option("--executor", help="Only these; may be repeated. [default: all]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play groups of short episodes in this process, in others, and by Ray's workers."""
    with measuring(env):
        report = executors.bench_executors(
            env, groups=groups, group_size=group_size, workers=workers, kinds=tuple(kinds or ExecutorKind)
        )
    print_report(report, executors.format_executors, as_json)


@benchmarks.command("trl")
def run_trl(
    slots: Annotated[int, typer.Option(min=1, help="Environments of a training step.")] = 16,
    start_delay_sec: Annotated[float, typer.Option(min=0.0, help="How much later each local sandbox starts.")] = 2.0,
    resets: Annotated[int, typer.Option(min=0, help="Then reset so often and count what is left; 0 does not.")] = 640,
    as_json: AsJson = False,
) -> None:
    """Time a training step's calls of TRL's environments, ours and those of TRL's own module for Harbor."""
    from tests.benchmarks import trl  # the other benchmarks run without it

    with measuring("local"):
        step = trl.bench_step(slots=slots, start_delay_sec=start_delay_sec)
        many = trl.bench_resets(resets=resets, slots=slots) if resets else None
    if as_json:
        echo(json.dumps({"step": step.as_object(), "resets": many and many.as_object()}, indent=2))
    else:
        echo(trl.format_step(step))
        if many is not None:
            echo(f"{many.resets} resets in {many.seconds:.1f} s left {len(many.left)} folders, mounts, processes")
    if many is not None and not many.is_right:
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    use_unpacked_engines()
    run_and_exit(partial(benchmarks, prog_name="make bench"))
