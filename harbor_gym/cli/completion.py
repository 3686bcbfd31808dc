"""What the shell completes beyond commands and flags: shipped tasks, sandboxes, agents and runs."""

from __future__ import annotations

import os
from pathlib import Path

from harbor_gym._runtime.shipped import PREFIX, shipped_tasks

_RUNS = Path("runs")
"""Where runs are kept if nothing else is said."""

_MARKS = ("run.json", "metrics.jsonl", "eval.json", "episodes.jsonl")
"""Files of which each run or evaluation has one."""


def tasks(incomplete: str) -> list[str]:
    """Return the names of shipped tasks; none where a path was begun, which the shell completes itself."""
    words, place = os.environ.get("COMP_WORDS", "").split(), int(os.environ.get("COMP_CWORD", "0"))
    if ":" in (incomplete, *words[place - 1 : place]):  # bash takes the colon for a word of its own
        begun = incomplete.removeprefix(":")
        return [name for name in shipped_tasks() if name.startswith(begun)]
    return [f"{PREFIX}{name}" for name in shipped_tasks() if incomplete and f"{PREFIX}{name}".startswith(incomplete)]


def sandboxes(incomplete: str) -> list[str]:
    """Return the names of sandboxes."""
    from harbor_gym.sandboxes import sandbox_names

    return [name for name in dict.fromkeys(sandbox_names()) if name.startswith(incomplete)]


def agents(incomplete: str) -> list[str]:
    """Return the names of the installed Harbor's agents."""
    from harbor.models.agent.name import AgentName

    return [name for name in sorted(AgentName.values()) if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the folders in ``runs`` that have a run or an evaluation, the newest first."""
    found = {path.parent for mark in _MARKS for path in _RUNS.glob(f"*/{mark}")}
    names = [str(path) for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
    return [name for name in names if name.startswith(incomplete)]
