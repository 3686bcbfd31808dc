"""``harbor-gym audit``: judge a whole data set of tasks, with a receipt for each."""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.files import one_run_at_a_time, replace_text
from harbor_gym.cli import completion, options
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, quiet_harbor
from harbor_gym.cli.tasks.check import trials_folder
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_SANDBOX, ExecutorKind

if TYPE_CHECKING:
    from harbor_gym.checking.audit.run import AuditPlan
    from harbor_gym.cli.progress import ShowsProgress
    from harbor_gym.tasks import SourcedTask
    from harbor_gym.tasks.receipts import Receipt

WARNED = 3
"""Exit code: some tasks have warnings, and none has an error."""

_SHOWN = 20
"""Findings that are printed, the worst first; the files have all."""


def audit(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Folders, git+URL@COMMIT#path, org/name@ref.", autocompletion=completion.tasks
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for receipts and reports.")] = Path("audit"),
    run: Annotated[
        list[Path] | None,
        typer.Option(
            autocompletion=completion.runs,
            help="Folder of a training run or an evaluation: read its episodes, too.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--regrade", min=0, help="Episodes of the runs to grade anew. [default: 20; --no-play: 0]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws them.")] = 0,
    play: Annotated[bool, typer.Option(help="Also play each task, as check does.")] = True,
    registry_path: options.RegistryPath = None,
    env: options.Env = DEFAULT_SANDBOX,
    sandbox_option: options.SandboxOptions = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of the solution and of an agent that does nothing.")] = 2,
    forge: options.Forge = True,
    vary: Annotated[
        bool,
        typer.Option(help="Play sound tasks on one processor, under load, in another zone, without a network, too."),
    ] = True,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build each image once more and compare the files (local).")
    ] = False,
    reward_key: options.RewardKey = None,
    reward_function: options.RewardFunctionName = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Tasks audited at the same time.")] = 2,
    executor: Annotated[
        ExecutorKind | None,
        typer.Option("--rollout-executor", help="Processes of this machine, or a Ray cluster's nodes, judge."),
    ] = None,
    task_timeout: Annotated[float, typer.Option(min=1, help="Seconds for all trials of one task.")] = 3600,
    fresh: Annotated[bool, typer.Option("--fresh", help="Judge also tasks that have a receipt.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of a table.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a receipt, and end.")] = False,
) -> None:
    """Judge a whole data set: read each task's files, play it as check does, and compare the tasks with one another.

    Each task gets a receipt in the folder; a task whose files have not changed since is not judged again, so that an
    interrupted audit goes on where it was. With --run and no PATH the tasks of that run are judged. Exit status: 0
    nothing found, or notes alone; 3 warnings; 1 errors; 2 misuse.
    """
    from harbor_gym.checking.audit.episodes import tasks_of
    from harbor_gym.checking.audit.regrades import SAMPLE
    from harbor_gym.checking.audit.run import AuditPlan
    from harbor_gym.checking.plan import CheckPlan
    from harbor_gym.cluster import open_executor
    from harbor_gym.episode.grading.rewards import reward_function as require_function
    from harbor_gym.sandboxes import environment_config, parse_options, preflight
    from harbor_gym.tasks import resolve_tasks
    from harbor_gym.tasks.receipts import Receipt
    from harbor_gym.transcripts import transcripts_of

    if schema:
        echo(json.dumps(Receipt.model_json_schema(), indent=2))
        return
    with one_line_errors(), quiet_harbor():
        if not sources and not run:
            raise UsageError("nothing to audit: give folders, git+URL@COMMIT#path, or org/name@ref")
        if sample and not run:
            raise UsageError("--regrade grades the episodes of a run anew: name its folder (--run)")
        if rebuild and (env != DEFAULT_SANDBOX or not play):
            raise UsageError(f"--rebuild compares the images of --env {DEFAULT_SANDBOX}, and not with --no-play")
        for folder in run or ():
            transcripts_of(folder)  # a wrong folder is named before hours of trials
        chosen = sources or [path for folder in run or () for path in tasks_of(folder)]
        tasks = asyncio.run(resolve_tasks(chosen, registry_path=registry_path))
        require_function(reward_key, reward_function)
        environment = environment_config(env, options=parse_options(sandbox_option or ()))
        if play:
            preflight(environment)
        out.mkdir(parents=True, exist_ok=True)
    with one_line_errors(), one_run_at_a_time(out, flag="--output"), trials_folder(None) as folder, quiet_harbor():
        check = CheckPlan(
            environment,
            folder,
            repeat=repeat,
            try_exploits=forge,
            reward_key=reward_key,
            reward_function=reward_function,
        )
        sandbox = " ".join([env, *(sandbox_option or ())])
        plan = AuditPlan(
            out,
            check if play else None,
            sandbox=sandbox if play else None,
            vary=vary,
            rebuild=rebuild,
            jobs=jobs,
            task_timeout_sec=task_timeout,
            fresh=fresh,
            runs=run or (),
            sample=(SAMPLE if play else 0) if sample is None else sample,
            seed=seed,
        )
        with warnings.catch_warnings():  # Harbor's, about a task, and Python's, about a test's syntax
            warnings.simplefilter("ignore")
            with nullcontext() if executor is None else open_executor(executor, min(jobs, len(tasks))) as judging:
                receipts = asyncio.run(_audit(tasks, replace(plan, executor=judging), shows=not as_json))
        _write(out, receipts)
    code = _print(receipts, out, as_json=as_json)
    if code:
        raise typer.Exit(code)


async def _audit(tasks: Sequence[SourcedTask], plan: AuditPlan, *, shows: bool) -> Sequence[Receipt]:
    from harbor_gym.checking.audit.run import audit_tasks
    from harbor_gym.cli.progress import progress

    if not shows:
        return (await audit_tasks(tasks, plan)).receipts
    with progress() as shown:
        count = _Count(len(tasks), shown)

        def graded(done: int, total: int) -> None:
            shown.bar("episodes", done, total)

        audit = await audit_tasks(tasks, plan, on_kept=count.keep, on_judged=count.add, on_graded=graded)
    if audit.kept:
        echo(f"{audit.kept} of {len(tasks)} tasks have not changed since their receipts were written")
    return audit.receipts


class _Count:
    """The judged tasks, and when the rest will be."""

    def __init__(self, total: int, shown: ShowsProgress) -> None:
        self._total, self._shown = total, shown
        self._kept = self._judged = self._bad = 0
        self._began = time.monotonic()

    def keep(self, kept: int) -> None:
        """Show how many tasks need not be judged."""
        self._kept = kept
        self._shown.bar("tasks", kept, self._total)

    def add(self, receipt: Receipt) -> None:
        """Count a judged task."""
        from harbor_gym.report.live import duration

        self._judged += 1
        self._bad += not receipt.is_clean
        left = self._total - self._kept - self._judged
        seconds = (time.monotonic() - self._began) / self._judged * left
        detail = f"{self._bad} with findings" + (f", {duration(seconds)} left" if left else "")
        self._shown.bar("tasks", self._kept + self._judged, self._total, detail)


def _write(out: Path, receipts: Sequence[Receipt]) -> None:
    from harbor_gym.checking.audit.report import as_csv, as_json
    from harbor_gym.report.audit import PAGE_NAME, write_audit_page

    replace_text(out / "audit.json", as_json(receipts))
    replace_text(out / "audit.csv", as_csv(receipts))
    write_audit_page(receipts, out / PAGE_NAME)


def _print(receipts: Sequence[Receipt], out: Path, *, as_json: bool) -> int:
    """Print the result; return the exit code."""
    from harbor_gym.checking.audit.report import as_json as summary
    from harbor_gym.checking.audit.report import episodes, line, table
    from harbor_gym.report.audit import PAGE_NAME
    from harbor_gym.tasks.receipts import Severity

    found = [(receipt.task, one) for receipt in receipts for one in receipt.findings]
    if as_json:
        echo(summary(receipts).rstrip())
    else:
        found.sort(key=lambda pair: pair[1].severity.rank)
        for task, one in found[:_SHOWN]:
            echo(line(task, one), err=True)
        if len(found) > _SHOWN:
            echo(f"and {len(found) - _SHOWN} more findings, in {out / 'audit.csv'}", err=True)
        if found:
            echo(table(receipts))
        if (grades := episodes(receipts)) is not None:
            echo(", ".join(f"{title} {share}" for title, share in grades.shares.items()))
        clean = sum(receipt.is_clean for receipt in receipts)
        echo(f"{clean} of {len(receipts)} tasks are clean; receipts in {out / 'receipts'}, a page in {out / PAGE_NAME}")
    severities = {one.severity for _, one in found}
    return FAILED if Severity.ERROR in severities else WARNED if Severity.WARNING in severities else 0
