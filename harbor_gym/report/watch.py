"""Show a run's episodes live in tmux: each pane plays recordings while they are written."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym._runtime.files import open_regular
from harbor_gym.errors import MissingDependencyError, UsageError, printable

if TYPE_CHECKING:
    import libtmux

SESSION = "episodes"
_POLL_SEC = 0.2
_LOOK_SEC = 1.0
"""Seconds between two searches for a newer recording; a run's folder may have many files."""
_CLEAR = "\x1bc"
_EPISODE = re.compile(r"episode_(\d+)\.cast")


def open_watch(run_dir: Path, *, panes: int = 4) -> libtmux.Session:
    """Start a tmux server with one session for a run, or restart that session. Returns at once.

    The server has its own socket and outlives the caller; ``session.kill()`` ends it.

    Args:
        run_dir: Folder of a training run or an evaluation, finished or not.
        panes: Number of panes; an episode is shown in the pane of its number modulo ``panes``.

    Raises:
        UsageError: There is no such folder.
        MissingDependencyError: This machine has no tmux.
    """
    if not run_dir.is_dir():
        raise UsageError(f"{run_dir} is not a directory: name the folder of a run (--log-path of train)")
    if shutil.which("tmux") is None:
        raise MissingDependencyError("harbor-gym watch needs tmux on this machine: apt-get install tmux")
    import libtmux

    commands = [_pane_command(run_dir.resolve(), pane, panes) for pane in range(panes)]
    server = libtmux.Server(socket_name=_socket_name(run_dir))
    session = server.new_session(SESSION, kill_session=True, attach=False, window_command=commands[0], x=200, y=60)
    window = session.active_window
    for command in commands[1:]:
        window.split(shell=command)
        window.select_layout("tiled")
    for pane in window.panes:
        pane.cmd("select-pane", "-d")  # disables input, which would be echoed over the episode
    name = printable(str(run_dir)).replace("#", "##").replace("%", "%%")
    window.cmd("set-option", "-w", "pane-border-status", "top")
    window.cmd("set-option", "-w", "pane-border-format", " #{pane_title} ")
    for option, value in {
        "status-left": f" {name}  ",
        "status-left-length": "120",
        "window-status-format": "",
        "window-status-current-format": "",
        "status-right": "#{prefix} z: one pane, #{prefix} d: end ",
    }.items():
        session.cmd("set-option", option, value)
    return session


def attach_argv(run_dir: Path) -> list[str]:
    """Return the command that attaches a terminal to a run's session."""
    return ["tmux", "-L", _socket_name(run_dir), "attach", "-t", SESSION]


def play_pane(
    run_dir: Path, pane: int, panes: int, write: Callable[[str], object], *, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Play the newest recording of one pane while it grows, then the next newer one. Blocks.

    Args:
        run_dir: Folder of the run.
        pane: Number of this pane, from 0.
        panes: Number of panes.
        write: Takes terminal output.
        is_over: Called between reads; True ends the call.
    """
    write(f"{_CLEAR}\x1b]2;waits for an episode\x07no recording yet below {printable(str(run_dir))}")
    shown: Path | None = None
    while not is_over():
        path = newest(run_dir, pane, panes)
        if path is None or path == shown:
            time.sleep(_LOOK_SEC)
            continue
        shown, looked = path, time.monotonic()
        write(f"{_CLEAR}\x1b]2;{printable(str(path.relative_to(run_dir)))}\x07")
        for output in _growing(path, run_dir):
            if output:
                write(output)
            elif is_over():
                break
            elif time.monotonic() - looked > _LOOK_SEC:
                looked = time.monotonic()
                if newest(run_dir, pane, panes) != path:
                    break


def newest(run_dir: Path, pane: int, panes: int) -> Path | None:
    """Return the pane's recording that was modified last; None if there is none."""
    found: list[tuple[float, Path]] = []
    for path in run_dir.rglob("*.cast"):
        number = _EPISODE.fullmatch(path.name)
        if (int(number[1]) if number else zlib.crc32(path.name.encode())) % panes == pane:
            with contextlib.suppress(FileNotFoundError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode):
                    found.append((state.st_mtime, path))
    return max(found, default=(0.0, None))[1]


def _growing(path: Path, run_dir: Path) -> Iterator[str]:
    """Yield a recording's output without end; an empty string means that there is no new output."""
    rest = ""
    try:
        opened = open_regular(path, run_dir)
    except OSError:  # removed, or no longer a regular file
        return
    with io.TextIOWrapper(opened, encoding="utf-8", errors="replace") as recording:
        while True:
            if text := recording.read():
                *lines, rest = (rest + text).split("\n")
                yield from filter(None, map(_output, lines))
            else:
                yield ""
                time.sleep(_POLL_SEC)


def _output(line: str) -> str:
    """Return the output of an asciicast's line; empty for the header, other events and invalid lines."""
    try:
        event = json.loads(line)
    except ValueError:
        return ""
    match event:
        case [float() | int(), "o", str() as output]:
            return output
        case _:
            return ""


def _pane_command(run_dir: Path, pane: int, panes: int) -> str:
    return shlex.join([sys.executable, "-m", "harbor_gym", "watch", str(run_dir), f"--panes={panes}", f"--pane={pane}"])


def _socket_name(run_dir: Path) -> str:
    return f"harbor-gym-{zlib.crc32(str(run_dir.resolve()).encode()):08x}"
