"""``harbor-gym watch``: a run's episodes live, in tmux."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli import completion
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError


def watch(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a training run, finished or not.", autocompletion=completion.runs
        ),
    ],
    panes: Annotated[int, typer.Option(min=1, max=16, help="Episodes to show at the same time.")] = 4,
    detach: Annotated[bool, typer.Option("--detach", help="Start the tmux session and print how to attach.")] = False,
    pane: Annotated[int | None, typer.Option(min=0, hidden=True)] = None,
) -> None:
    """Show a run's episodes as they are played, each in a pane of a tmux session of its own; C-b d ends it."""
    from harbor_gym.report.watch import attach_argv, open_watch, play_pane

    if pane is not None:
        play_pane(run_dir, pane, panes, _write)
        return
    with one_line_errors():
        if _is_over(run_dir):
            echo(f"{run_dir} is finished, and nothing of it is played any more: harbor-gym view {run_dir}")
            return
        if run_dir.is_dir() and not detach and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(f"{run_dir} is shown in a terminal, and this is none: --detach prints how to attach one")
        open_watch(run_dir, panes=panes)
    argv = attach_argv(run_dir)
    if detach:
        echo(shlex.join(argv))
        return
    os.execvp(argv[0], [*argv, ";", "set-option", "destroy-unattached", "on"])  # with its last terminal it ends


def _is_over(run_dir: Path) -> bool:
    """Return whether a training run has its final checkpoint, or an evaluation its result and no newer recording.

    Raises:
        UsageError: A record of the run's checkpoints can't be read.
    """
    from harbor_gym.evaluation.best import is_finished
    from harbor_gym.transcripts import RESULT_NAME

    result = run_dir / RESULT_NAME
    if not result.is_file():
        return is_finished(run_dir)
    written = result.stat().st_mtime
    return all(path.lstat().st_mtime <= written for path in run_dir.rglob("*.cast"))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
