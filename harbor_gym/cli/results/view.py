"""``harbor-gym view``: a run's episodes as a live page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli import completion
from harbor_gym.cli.shared import echo, one_line_errors


def view(
    run_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, several to compare, or a folder of runs. [default: runs]",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is any free one.")] = 8765,
    browse: Annotated[bool, typer.Option("--browse", help="Open it in the browser.")] = False,
) -> None:
    """Serve a run's episodes as a page on this machine: new ones appear, and can be filtered, sorted and searched.

    A folder of runs is shown as their list, the newest first, with their results. Ctrl-C ends it. `harbor-gym report`
    writes the same page as one file.
    """
    from harbor_gym.report.viewer import Viewer

    folders = run_dirs or [Path("runs")]
    with one_line_errors():
        viewer = Viewer(folders, port=port)
    if viewer.catalog is not None and not viewer.catalog.runs():
        echo(f"{folders[0]} holds no run or evaluation: its list stays empty until one writes there", err=True)
    for folder in folders if viewer.catalog is None else ():
        if not (folder / "transcripts").is_dir():
            echo(f"{folder} holds no transcripts/: its page stays empty until a run writes some there", err=True)
    echo(f"{viewer.url}  (Ctrl-C ends it)")
    if browse:
        webbrowser.open(viewer.url)
    with viewer:
        try:
            viewer.wait()
        except KeyboardInterrupt:
            echo("ended", err=True)
