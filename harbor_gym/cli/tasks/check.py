"""``harbor-gym check``: check that tasks grade as they should."""

from __future__ import annotations

import asyncio
import json
import tempfile
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.cli import completion, options
from harbor_gym.cli.shared import FAILED, echo, loading, one_line_errors, quiet_harbor
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_SANDBOX

if TYPE_CHECKING:
    from harbor_gym.checking import CheckPlan, TaskCheck
    from harbor_gym.tasks import SourcedTask

UNPROVEN = 3
"""Exit code: nothing is wrong with any task, but some have no solution that would show it."""


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Task directories, or directories of tasks.", autocompletion=completion.tasks
        ),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="git+URL@COMMIT#path, org/name@ref, or a path; may be repeated.")
    ] = None,
    registry_path: options.RegistryPath = None,
    env: options.Env = DEFAULT_SANDBOX,
    repeat: Annotated[
        int, typer.Option(min=1, help="Runs of the solution and of an agent that does nothing, to compare.")
    ] = 2,
    forge: options.Forge = True,
    reward_key: options.RewardKey = None,
    reward_function: options.RewardFunctionName = None,
    sandbox_option: options.SandboxOptions = None,
    verify_paths: Annotated[
        str, typer.Option(help="Pristine view: auto (the task's, or proposed), off, or paths with commas between.")
    ] = "auto",
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks checked at the same time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per task.")] = False,
    trials_dir: Annotated[Path | None, typer.Option(help="Keep the trials' folders here.")] = None,
) -> None:
    """Check that each task's oracle scores 1.0, that doing nothing and reward hacking score 0.0, and that runs agree.

    Exit status: 0 all tasks are ok; 3 nothing is wrong, but some are unproven, for they have no solution; 1 something
    is wrong; 2 misuse.
    """
    with loading():
        from harbor_gym.checking import CheckPlan, Verdict
        from harbor_gym.config.verify_paths import parse_verify_paths
        from harbor_gym.episode.grading.rewards import reward_function as require_function
        from harbor_gym.sandboxes import environment_config, parse_options, preflight
        from harbor_gym.tasks import resolve_tasks

    with one_line_errors(), quiet_harbor():
        carried = parse_verify_paths(verify_paths)
        sources = [*(paths or ()), *(task or ())]
        if not sources:
            raise UsageError("nothing to check: give a directory, or --task git+URL@COMMIT#path or org/name@ref")
        for path in paths or ():
            if not path.exists() and ("@" in path.name or str(path).startswith("git+")):
                raise UsageError(f"{path} is not a directory; give a task from elsewhere as --task SOURCE")
        tasks = asyncio.run(resolve_tasks(sources, registry_path=registry_path))
        environment = environment_config(env, options=parse_options(sandbox_option or ()))
        require_function(reward_key, reward_function)
        preflight(environment)
    with trials_folder(trials_dir) as folder, quiet_harbor(), warnings.catch_warnings():
        # Harbor's warnings about a task would break the table.
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
        checks: list[TaskCheck] = []
        try:
            asyncio.run(_check_all(tasks, plan, concurrency, checks, table=not as_json))
        finally:  # also after a signal, the verdicts so far are printed
            order = [item.path for item in tasks]
            checks.sort(key=lambda item: order.index(item.path))
            _print(checks, as_json=as_json)
    if not all(item.ok for item in checks):
        raise typer.Exit(UNPROVEN if all(item.ok or item.verdict is Verdict.UNPROVEN for item in checks) else FAILED)


async def _check_all(
    tasks: Sequence[SourcedTask], plan: CheckPlan, concurrency: int, checks: list[TaskCheck], *, table: bool
) -> None:
    """Check the tasks; add each verdict to ``checks`` at once."""
    from harbor_gym.checking import check_tasks
    from harbor_gym.checking.report import table_head, table_row
    from harbor_gym.cli.progress import bars_on_a_terminal

    width = max(len("task"), *(len(task.name) for task in tasks))
    if not table:
        await check_tasks(tasks, plan, concurrency=concurrency, on_checked=checks.append)
        return
    echo(table_head(width))
    with bars_on_a_terminal() as shown:

        def show(item: TaskCheck) -> None:
            checks.append(item)
            shown.line(table_row(item, width))
            shown.bar("tasks", len(checks), len(tasks))

        shown.bar("tasks", 0, len(tasks))
        await check_tasks(tasks, plan, concurrency=concurrency, on_checked=show)


def _print(checks: Sequence[TaskCheck], *, as_json: bool) -> None:
    """Print the verdicts as JSON, or the remarks about the printed rows."""
    from harbor_gym.checking.report import as_object, remarks

    if as_json:
        echo(json.dumps([as_object(item) for item in checks], indent=2))
        return
    for line in (line for item in checks for line in remarks(item)):
        echo(line, err=True)


@contextmanager
def trials_folder(trials_dir: Path | None) -> Generator[Path]:
    """Yield the given folder, or a temporary one."""
    if trials_dir is not None:
        yield trials_dir
        return
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("check"), ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)
