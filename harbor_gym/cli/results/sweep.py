"""``harbor-gym sweep``: one training run for each learning rate and seed, in one folder."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym._runtime.json_files import read_document
from harbor_gym.cli.plain_help import HELP_NAMES
from harbor_gym.cli.shared import INTERRUPTED, MISUSED, echo, one_line_errors
from harbor_gym.errors import UsageError

SWEEP_FORMAT = 1
TRAIN = (sys.executable, "-m", "harbor_gym", "train")
"""The command that trains, without its flags."""

TAIL_LINES = 15
GRACE_SEC = 20.0
"""Longest wait for an interrupted run to stop its server and sandboxes, in seconds."""

OWNED = ("--learning-rate", "--seed", "--log-path", "--log-dir-exists", "--task-dir")


@dataclass(frozen=True)
class Run:
    """One point of the grid."""

    rate: float
    seed: int
    folder: Path

    @property
    def log(self) -> Path:
        """The file with the run's output, next to its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_finished(self) -> bool:
        """Whether the run has saved its final checkpoint."""
        from harbor_gym.evaluation.best import is_finished

        return is_finished(self.folder)


SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, **HELP_NAMES}
"""Settings of the command, which passes unknown flags on to ``harbor-gym train``."""


def sweep(
    context: typer.Context,
    task_dir: Annotated[
        Path | None, typer.Option(help="Harbor task directory, or task:NAME of a shipped task, in place of PATH.")
    ] = None,
    learning_rates: Annotated[str, typer.Option(help="With commas between.")] = "1e-3,2e-4,5e-5",
    seeds: Annotated[str, typer.Option(help="With commas between.")] = "0,1,2",
    sweep_path: Annotated[
        Path | None,
        typer.Option("--output", "-o", "--sweep-path", help="Folder of the sweep. [default: runs/sweep-TASK]"),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", "-j", min=1, help="Runs at the same time.")] = 1,
) -> None:
    """Train for each learning rate and seed, then draw the curves and print the table.

    As in: harbor-gym sweep PATH --seeds 0,1 --backend local. PATH, a Harbor task directory or task:NAME, comes before
    any flag of `harbor-gym train`: flags that are not listed here go to it as they stand. The same command continues an
    unfinished sweep: finished runs are left alone, a broken one resumes from its last checkpoint, more rates or seeds
    are added.
    """
    from harbor_gym.tasks import task_path

    with one_line_errors():
        if task_dir is None:
            if not context.args or context.args[0].startswith("-"):
                raise UsageError("name the task before the flags of train: harbor-gym sweep PATH …")
            task_dir = Path(context.args.pop(0))
        task_dir = task_path(task_dir)
        folder = (sweep_path or Path("runs") / f"sweep-{task_dir.resolve().name}").resolve()
        if taken := [flag for flag in context.args if flag.split("=")[0] in OWNED]:
            raise UsageError(f"{', '.join(taken)} is for the sweep to set; see --help")
        flags = ["--task-dir", str(task_dir.resolve()), *context.args]
        named = {flag.split("=")[0] for flag in context.args}
        if "--track" in named and "--track-project" not in named:
            flags += ["--track-project", folder.name]
        rates, numbers = numbers_of(learning_rates, float), numbers_of(seeds, int)
        asyncio.run(require_tasks(task_dir))
        runs = prepare_runs(folder, rates=rates, seeds=numbers, flags=flags)
    try:
        with one_line_errors():
            failures = asyncio.run(train_all(runs, flags, parallel))
    except KeyboardInterrupt:
        echo("interrupted; the same command continues it", err=True)
        raise typer.Exit(INTERRUPTED) from None
    show(runs, folder, title=f"{task_dir.resolve().name}: {_count(rates, 'learning rate')}, {_count(numbers, 'seed')}")
    for failure in failures:
        echo(f"error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def _count(items: Sequence[float], word: str) -> str:
    return f"{len(items)} {word}{'s' * (len(items) != 1)}"


async def require_tasks(path: Path) -> None:
    """Check that the task, or each task of a folder, can be read.

    Raises:
        UsageError: There is no task.
        TaskError: A task can't be read.
    """
    from harbor_gym.episode.task import load_task
    from harbor_gym.tasks import find_tasks

    for task in find_tasks([path]):
        await load_task(task)


def numbers_of[Number: (int, float)](text: str, kind: type[Number]) -> list[Number]:
    """Parse comma-separated numbers."""
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise UsageError(f"expected numbers with commas between them, got {text!r}") from None


def prepare_runs(folder: Path, *, rates: Sequence[float], seeds: Sequence[int], flags: Sequence[str]) -> list[Run]:
    """Write the grid to ``sweep.json`` and return its runs, including those of earlier calls of the same sweep."""
    if not (rates and seeds):
        raise UsageError("a sweep needs at least one learning rate and one seed")
    file = folder / "sweep.json"
    if file.is_file() and any(path.is_dir() for path in folder.glob("lr_*")):
        remedy = "choose another --output"
        known = read_document(file, remedy=remedy)
        if lacking := {"train_flags", "learning_rates", "seeds"} - set(known):
            raise UsageError(f"{file} can't be read: it has no {', '.join(sorted(lacking))}: {remedy}")
        if known["train_flags"] != list(flags):
            raise UsageError(f"{file} is a sweep with other flags, {known['train_flags']}; {remedy}")
        rates, seeds = sorted({*rates, *known["learning_rates"]}, reverse=True), sorted({*seeds, *known["seeds"]})
    folder.mkdir(parents=True, exist_ok=True)
    grid = {"format": SWEEP_FORMAT, "learning_rates": list(rates), "seeds": list(seeds), "train_flags": list(flags)}
    file.write_text(json.dumps(grid, indent=1) + "\n", encoding="utf-8")
    # Seed by seed, so that an interrupted sweep has runs of every rate.
    return [Run(rate, seed, folder / f"lr_{rate:g}_seed_{seed}") for seed in seeds for rate in rates]


async def train_all(runs: Sequence[Run], flags: Sequence[str], parallel: int) -> list[str]:
    """Train the unfinished runs, and return a message with the end of the log for each failed run.

    Raises:
        UsageError: A run's settings were refused. All have the same flags, so no other run is started.
    """
    slots = asyncio.Semaphore(parallel)
    refused: list[str] = []

    async def failure(run: Run) -> str | None:
        async with slots:
            if refused or not (code := await train(run, flags)):
                return None
        tail = run.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        if code == MISUSED and not run.folder.exists():
            refused.extend(tail[-1:])
        return f"{run.folder.name} ended with exit code {code}; the end of {run.log}:\n" + "\n".join(tail)

    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(failure(run)) for run in runs if not run.is_finished]
        echo(f"{len(waiting)} runs to train, {len(runs) - len(waiting)} finished already")
    if refused:
        raise UsageError(refused[0].removeprefix("error: "))
    return [text for task in waiting if (text := task.result()) is not None]


async def train(run: Run, flags: Sequence[str]) -> int:
    """Train one run and return its exit code. Its output is printed, and written to the run's log."""
    own = ["--learning-rate", f"{run.rate:g}", "--seed", str(run.seed), "--log-path", str(run.folder)]
    with run.log.open("ab", buffering=0) as file:
        process = await asyncio.create_subprocess_exec(
            *(*TRAIN, *flags, *own, "--log-dir-exists", "resume"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            limit=1 << 20,
            process_group=0,  # Ctrl-C reaches only this process, which passes it on once
        )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                file.write(line)
                echo(f"{run.folder.name}  {line.decode(errors='replace').rstrip()}")
            return await process.wait()
        finally:
            await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Interrupt a run that has not ended, and kill it after ``GRACE_SEC`` seconds."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SEC)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def show(runs: Sequence[Run], folder: Path, *, title: str) -> None:
    """Draw the curves and print the table of all runs that have a batch, finished or not."""
    from harbor_gym.report import draw_rates, format_summary, load_curves

    curves = []
    for run in runs:
        with contextlib.suppress(UsageError):  # a run without a batch
            curves.append(load_curves(run.folder))
    if not curves:
        return
    draw_rates(curves, folder / "curves.png", title=title)
    echo(format_summary(curves))
    echo(f"picture: {folder / 'curves.png'}")
