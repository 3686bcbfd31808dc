"""``harbor-gym play``: play a task in your own terminal."""

import codecs
import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harbor_gym._runtime.console.progress import ticking
from harbor_gym.cli import completion
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError, printable
from harbor_gym.types import DEFAULT_SANDBOX, ActionFormat

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium import HarborTerminalEnv
    from harbor_gym.config import Snapshot

HAND_IN = "\x1d"  # C-]
READ_AGAIN = "\x1c"  # C-\
IN_SERVICE = "\x1e"  # C-^
TICK_SEC = 0.05
_CLEAR = "\x1b[2J\x1b[H"
_SERVICE_TIMEOUT_SEC = 60.0


def play(
    task: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="Task directory, or task:NAME of a shipped task.", autocompletion=completion.tasks
        ),
    ] = "",
    task_dir: Annotated[str, typer.Option(help="Task directory, instead of the argument.")] = "",
    env: Annotated[
        str,
        typer.Option("--env", autocompletion=completion.sandboxes, help="Sandbox: local, docker, … [default: local]"),
    ] = "",
    start: Annotated[
        Path | None, typer.Option("--from", help="Go on from an episode: RUN/EPISODE, its transcript, or a snapshot.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option(help="With --from: after which of its turns. [default: before its last one]")
    ] = None,
) -> None:
    """Play a task in your own terminal: every key goes into the sandbox, C-] hands in, and the verifier scores you.

    C-\\ shows the instruction again. In a task with services, C-^ asks for a service and a command for its shell.
    """
    from harbor_gym.tasks import task_path

    with one_line_errors():
        if start is None and turn is not None:
            raise UsageError("--turn is one of an episode's: give the episode with --from")
        snapshot = None if start is None else _snapshot(start, turn)
        known = None if snapshot is None else snapshot.config
        place = task_path(task_dir or task or (str(known.task_dir) if known else "task:devops_task"))
        end = _play(str(place), env or (known.sandbox if known else DEFAULT_SANDBOX), snapshot)
    echo(end, before=_CLEAR)


def _snapshot(start: Path, turn: int | None) -> "Snapshot":
    """Return the snapshot in a file, or of an episode by its name in a run's page, or an interrupted one."""
    from harbor_gym.config import Snapshot

    places = (run / "transcripts" / start.relative_to(run) for run in start.parents)
    named = (Path(f"{place}{suffix}") for place in places for suffix in (".json", ".snapshot"))
    found = start if start.is_file() else next((path for path in named if path.is_file()), start)
    snapshot = Snapshot.read(found)
    if snapshot.config.action_format != ActionFormat.TERMINUS_JSON:
        raise UsageError(
            f"{found}: play goes on from episodes in terminus-json-plain alone, not in {snapshot.config.action_format}"
        )
    return snapshot if turn is None else snapshot.at(turn)


def _play(task_dir: str, env: str, snapshot: "Snapshot | None" = None) -> str:
    from harbor.environments.definition import COMPOSE_FILE_NAME

    from harbor_gym.adapters.gymnasium import HarborTerminalEnv, terminus_message
    from harbor_gym.checking.play import last_lines
    from harbor_gym.config import TerminalConfig

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("play needs a terminal for its keys and its screen; a program plays with AsyncTerminalGymEnv")
    size = os.get_terminal_size()
    terminal = TerminalConfig(columns=max(size.columns, 20), rows=max(size.lines, 5), min_wait_sec=0)
    budgets: dict[str, Any] = {"max_turns": None, "time_limit_sec": 86_400, "confirm_task_complete": False}
    if snapshot is not None:
        shape = snapshot.config.terminal
        if terminal.columns < shape.columns or terminal.rows < shape.rows:
            raise UsageError(f"the episode's screen has {shape.columns} columns and {shape.rows} rows: enlarge yours")
        terminal = shape.model_copy(update={"min_wait_sec": 0})
        budgets |= {"start_from": snapshot, "confirm_task_complete": snapshot.config.confirm_task_complete}
        budgets["trials_dir"] = None  # the run's own
    interface: dict[str, Any] = {"action": "message", "render_mode": "human", "terminal": terminal}
    has_services = (Path(task_dir) / "environment" / COMPOSE_FILE_NAME).exists()
    game = HarborTerminalEnv(task_dir, sandbox=env, **interface, **budgets)
    with contextlib.closing(game):
        with ticking(f"starting a sandbox of {Path(task_dir).name}"):
            _, info = game.reset()
        instruction = info["instruction"]
        asks = ", C-^ runs a command in a service" if has_services else ""
        start = f"{_CLEAR}{printable(instruction)}\nC-] hands in, C-\\ shows this again{asks}. Enter starts"
        typer.prompt(start, default="", show_default=False)
        over, reward, decoder = False, 0.0, codecs.getincrementaldecoder("utf-8")("replace")
        with _raw_keyboard() as (keyboard, as_before):
            while not over:
                ready, _, _ = select.select([keyboard], [], [], TICK_SEC)
                keys = decoder.decode(os.read(keyboard, 4096)) if ready else ""
                keys, reads, _ = keys.partition(READ_AGAIN)
                if reads:
                    instruction = info.get("instruction", instruction)
                    _show_until_a_key(f"{instruction}\nAny key goes back", keyboard)
                if has_services and IN_SERVICE in keys:
                    keys = keys.partition(IN_SERVICE)[0]
                    _run_in_service(game, keyboard, as_before)
                typed, handed_in, _ = keys.partition(HAND_IN)
                action = terminus_message(typed, duration_sec=TICK_SEC, task_complete=bool(handed_in))
                _, reward, terminated, truncated, info = game.step(action)
                if info.get("confirmation_pending"):
                    _, reward, terminated, truncated, info = game.step(terminus_message("", task_complete=True))
                over = terminated or truncated
    output = last_lines(info.get("verifier_output", ""))
    return f"{output}\n{info['end_reason']}, reward {reward}".lstrip()


def _run_in_service(game: "HarborTerminalEnv", keyboard: int, as_before: list[Any]) -> None:
    """Ask for a service and a command, and show the command's output until a key."""
    termios.tcsetattr(keyboard, termios.TCSADRAIN, as_before)
    try:
        line = typer.prompt(f"{_CLEAR}SERVICE COMMAND", default="", show_default=False)
    except typer.Abort:
        return
    finally:
        tty.setraw(keyboard)
    service, _, command = line.strip().partition(" ")
    if not command.strip():
        return
    try:
        done = game.exec(command, timeout_sec=_SERVICE_TIMEOUT_SEC, service=service)
        status = "no end in time" if done.return_code is None else f"status {done.return_code}"
        text = f"{done.output}\n{status}"
    except UsageError as exc:
        text = str(exc)
    _show_until_a_key(f"{text}. Any key goes back", keyboard)


def _show_until_a_key(text: str, keyboard: int) -> None:
    sys.stdout.write(_CLEAR + printable(text).replace("\n", "\r\n"))
    sys.stdout.flush()
    os.read(keyboard, 4096)


@contextlib.contextmanager
def _raw_keyboard() -> Generator[tuple[int, list[Any]]]:
    """Yield stdin's descriptor in raw mode, so that every key, also C-c, can be read, and its mode before."""
    keyboard = sys.stdin.fileno()
    saved = tty.setraw(keyboard)
    try:
        yield keyboard, saved
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)
