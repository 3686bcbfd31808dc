"""What a check prints: a row of a table, what is said below it, and an object for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.checking.verdict import TaskCheck


def table_head(width: int) -> str:
    """Return the line above all rows; ``width`` is that of the longest task name, in characters."""
    times = "  start  agent verify   stop    all"
    return f"{'task':<{width}}  {'oracle':<9}{'nop':<9}{'forged':<8}{times}  verdict"


def table_row(check: TaskCheck, width: int) -> str:
    """Return a task's rewards, seconds, verdict, and the base image that was not the task's own."""
    rewards = [_rewards(check.oracle), _rewards(check.nop), "-" if check.forged is None else f"{check.forged:g}"]
    phases = check.phases
    times = ["-"] * 4 if phases is None else [f"{t:.1f}" for t in dataclasses.astuple(phases)]
    seconds = "".join(f"{time:>7}" for time in [*times, f"{check.seconds:.1f}"])
    bases = "".join(f"  ({base})" for base in check.image_substitutions)
    return (
        f"{check.task:<{width}}  {rewards[0]:<9}{rewards[1]:<9}{rewards[2]:<8}{seconds}  {check.verdict.value}{bases}"
    )


def remarks(check: TaskCheck) -> list[str]:
    """Return the lines that say why a task is not ok, with the end of what its verifier printed; none where it is."""
    if check.reason is None:
        return []
    return [f"{check.task}: {check.reason}", *(f"    | {line}" for line in check.output.splitlines())]


def as_object(check: TaskCheck) -> dict[str, object]:
    """Return the fields, and what follows from them, as JSON takes them."""
    derived = {"path": str(check.path), "ok": check.ok, "verdict": check.verdict.value, "reason": check.reason}
    return {**dataclasses.asdict(check), **derived}


def _rewards(rewards: Sequence[float]) -> str:
    return " ".join(f"{reward:.3g}" for reward in rewards) or "-"
