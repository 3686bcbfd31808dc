"""The output of a check: a row of a table, remarks below it, and an object for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harbor_gym._runtime.console.tables import plain_table

if TYPE_CHECKING:
    from harbor_gym.checking.verdict import TaskCheck

_HEAD = ("task", "oracle", "nop", "forged", "start", "agent", "verify", "stop", "all", "harbor", "pristine", "verdict")
_WIDTHS = (7, 7, 6, 5, 5, 6, 5, 5, 9, 9)
"""Minimum widths of the columns after the task's: rows are printed one by one as tasks end."""

_SECONDS = range(4, 9)
"""Indices of the columns with seconds."""


def table_head(width: int) -> str:
    """Return the line above all rows; ``width`` is that of the longest task name, in characters."""
    return plain_table(_HEAD, [], right=_SECONDS, widths=(width, *_WIDTHS))


def table_row(check: TaskCheck, width: int) -> str:
    """Return a task's rewards, seconds and verdict."""
    rewards = [_rewards(check.oracle), _rewards(check.nop), "-" if check.forged is None else f"{check.forged:g}"]
    phases = check.phases
    times = ["-"] * 4 if phases is None else [f"{t:.1f}" for t in dataclasses.astuple(phases)]
    views = [check.harbors_verdict.value, "-" if check.pristine is None else check.pristine.verdict.value]
    cells = [check.task, *rewards, *times, f"{check.seconds:.1f}", *views, check.verdict.value]
    return plain_table((), [cells], right=_SECONDS, widths=(width, *_WIDTHS))


def remarks(check: TaskCheck) -> list[str]:
    """Return lines on why a task is not ok, the end of its verifier's output, and further remarks for its author."""
    lines: list[str] = []
    if check.reason is not None:
        lines += [f"{check.task}: {check.reason}", *(f"    | {line}" for line in check.shown_output.splitlines())]
    if check.services is not None:
        lines.append(f"{check.task}: {check.services}")
    if check.voided:
        lines.append(f"{check.task}: no verdict after {', '.join(check.voided)}: such an episode is discarded")
    lines += [f"{check.task}: {oddity}" for oddity in check.oddities]
    lines += [f"{check.task}: harbor lint: {finding}" for finding in check.lint]
    pristine = check.pristine
    if pristine is None:
        return lines
    if not pristine.is_asked:
        lines.append(
            f"{check.task}: {pristine.verdict.value} in a pristine view: put {pristine.declaration} under [metadata] "
            "in task.toml"
        )
    if pristine.remains:
        lines.append(f"{check.task}: what a policy can still plant there: {'; '.join(pristine.remains)}")
    return lines


def as_object(check: TaskCheck) -> dict[str, object]:
    """Return the fields and the values derived from them, ready for JSON."""
    found = dataclasses.asdict(check)
    if check.pristine is not None:
        found["pristine"] |= {"verdict": check.pristine.verdict.value, "declaration": check.pristine.declaration}
    derived = {"path": str(check.path), "ok": check.ok, "verdict": check.verdict.value, "reason": check.reason}
    return {**found, **derived, "harbors_verdict": check.harbors_verdict.value}


def _rewards(rewards: Sequence[float]) -> str:
    return " ".join(f"{reward:.3g}" for reward in rewards) or "-"
