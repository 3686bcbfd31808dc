"""The replay of an episode in a fresh sandbox: the same keystrokes, and each observation compared."""

import difflib
from dataclasses import replace

from harbor_gym.config import Snapshot, TerminalConfig, TerminalEnvConfig
from harbor_gym.errors import ForkDivergedError, UsageError
from harbor_gym.formats.parsed import ParsedAction
from harbor_gym.types import ForkMode, Turn

REPLAY, EXACT = "replay", "exact"
"""``info["fork_mode"]`` of an episode that began with a replay, or as a copy of files and processes."""

_SHOWN_BY = ("action_format", "terminal", "setup_command", "confirm_task_complete", "mcp_tools")
"""The fields of a configuration that a replayed screen depends on."""

_LONGEST_LINE = 80


def require_mode(mode: ForkMode) -> None:
    """Check that episodes can be copied in a mode.

    Raises:
        UsageError: There is no such mode.
    """
    if mode not in ("auto", REPLAY, EXACT):
        raise UsageError(f"mode is auto, replay or exact, got {mode!r}")


def require_start(snapshot: Snapshot, config: TerminalEnvConfig, task_digest: str) -> None:
    """Check that an episode of a configuration can go on from a snapshot.

    Raises:
        UsageError: It is another task's, or has settings under which the same keys may show something else.
    """
    if snapshot.task_digest not in ("", task_digest):
        raise UsageError(f"start_from: the snapshot is of another task, or {config.task_dir} has changed since")
    floor = {"min_wait_sec": config.terminal.min_wait_sec}  # a replay uses the recorded episode's
    known = snapshot.config.model_copy(update={"terminal": snapshot.config.terminal.model_copy(update=floor)})
    if differing := [name for name in _SHOWN_BY if getattr(config, name) != getattr(known, name)]:
        raise UsageError(f"start_from: the snapshot's episode had other settings: {', '.join(differing)} differ")
    if config.max_turns is not None and snapshot.turn >= config.max_turns:
        raise UsageError(f"start_from: max_turns is {config.max_turns}, and the snapshot has {snapshot.turn} turns")


def with_patience(parsed: ParsedAction, recorded: Turn, config: TerminalConfig) -> ParsedAction:
    """Return a recorded action with the longest wait for each command that did not reach its deadline.

    A slower machine then shows the same screen. A command that reached its deadline keeps its duration.
    """
    waits = recorded.info.get("waits", ())
    if config.wait == "exact" or len(waits) != len(parsed.commands):
        return parsed
    longest = [
        replace(
            item,
            duration_sec=max(item.duration_sec, config.min_wait_sec) if wait == "deadline" else config.max_wait_sec,
        )
        for item, wait in zip(parsed.commands, waits, strict=True)
    ]
    return replace(parsed, commands=tuple(longest))


def require_same(turn: int, expected: str, found: str) -> None:
    """Check that a replayed turn shows exactly the recorded text.

    Raises:
        ForkDivergedError: The texts differ.
    """
    if expected == found:
        return
    lines = expected.split("\n"), found.split("\n")
    diff = "\n".join(difflib.unified_diff(*lines, "the episode", "its replay", lineterm="", n=1))
    first = next((i for i, (a, b) in enumerate(zip(*lines, strict=False)) if a != b), min(map(len, lines)))
    shown = (repr(side[first][:_LONGEST_LINE]) if first < len(side) else "nothing more" for side in lines)
    old, new = shown
    raise ForkDivergedError(
        f"turn {turn} of the replay differs from the episode's: line {first + 1} was {old} and is {new}", turn, diff
    )
