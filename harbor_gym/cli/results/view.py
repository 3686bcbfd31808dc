"""``harbor-gym view``: a run's episodes as a live page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def view(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN [RUN]", help="Folder of a run; two for side by side.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is any free one.")] = 8765,
    browse: Annotated[bool, typer.Option("--browse", help="Open it in the browser.")] = False,
) -> None:
    """Serve a run's episodes as a page on this machine: new ones appear, and can be filtered, sorted and searched.

    Ctrl-C ends it. `harbor-gym report` writes the same page as one file.
    """
    from harbor_gym.report.viewer import Viewer

    with one_line_errors():
        viewer = Viewer(run_dirs, port=port)
    for folder in run_dirs:
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
