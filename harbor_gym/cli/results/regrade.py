"""``harbor-gym regrade``: a run's episodes, graded by the verifiers of today."""

import asyncio
import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import FAILED, echo, one_line_errors, preflight_by_name, quiet_harbor


def regrade(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs or evaluations.")],
    task_dir: Annotated[
        list[Path] | None,
        typer.Option(help="A task, or a directory of tasks, as it is today; may be repeated. [default: where it was]"),
    ] = None,
    env: Annotated[str | None, typer.Option("--env", help="Kind of sandbox. [default: the episode's own]")] = None,
    n_concurrent: Annotated[int, typer.Option("-n", "--n-concurrent", min=1, help="Episodes at the same time.")] = 4,
    retries: Annotated[int, typer.Option(min=0, help="Retries after failures of the infrastructure.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="List the episodes with the same reward, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per episode.")] = False,
) -> None:
    """Replay each stored episode in a fresh sandbox, verify it by its task of today, and list old and new rewards.

    Exit status: 0 every episode has a new reward; 1 some have none, and the table says why; 2 misuse.
    """
    from harbor_gym.cli.progress import progress
    from harbor_gym.evaluation import Regraded, format_regraded
    from harbor_gym.evaluation import regrade as grade_anew
    from harbor_gym.tasks import resolve_tasks
    from harbor_gym.transcripts import transcripts_of

    with one_line_errors():
        if env is not None:
            preflight_by_name(env)
        found = asyncio.run(resolve_tasks(task_dir)) if task_dir else []
        total = sum(len(transcripts_of(run)) for run in run_dirs)
    done = 0
    with one_line_errors(), quiet_harbor(), nullcontext() if as_json else progress() as shown:

        def count(_result: Regraded) -> None:
            nonlocal done
            done += 1
            if shown is not None:
                shown.bar("episodes", done, total)

        tasks = {task.path.resolve().name: task.path for task in found}
        grading = grade_anew(
            run_dirs, tasks=tasks, sandbox=env, n_concurrent=n_concurrent, max_retries=retries, on_episode=count
        )
        results = asyncio.run(grading)
    if as_json:
        rows = [{**dataclasses.asdict(result), "run": str(result.run)} for result in results]
        echo(json.dumps(rows, indent=2))
    else:
        echo(format_regraded(results, every=every))
    if any(result.new is None for result in results):
        raise typer.Exit(FAILED)
