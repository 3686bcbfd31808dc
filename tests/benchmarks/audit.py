"""An audit of many small tasks: time, memory and disk, and how they grow with the number of tasks."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import UsageError
from tests.benchmarks.report import BenchReport
from tests.helpers.tasks import write_task

_DEFECT_EVERY = 10
_WORDS = 60
_FIGURES = ("sec", "again_sec", "peak_mib", "disk_mib")
_TESTS = """\
#!/bin/bash
if [ "$(sha256sum < /srv/answer)" = "$(echo {number} | sha256sum)" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One audit of a set."""

    tasks: int
    sec: float
    again_sec: float
    """A second audit, of which every task has its receipt."""

    peak_mib: float
    """The command's largest resident memory."""

    disk_mib: float
    """Its folder."""

    missed: int
    """Tasks with a defect that has no finding, or without one that have."""


@dataclass(frozen=True, slots=True)
class AuditReport(BenchReport):
    """The results of ``make bench ARGS=audit``."""

    rows: list[AuditRow]

    @property
    def is_right(self) -> bool:
        """Whether exactly the tasks with a defect have findings."""
        return not any(row.missed for row in self.rows)

    def exponents(self) -> dict[str, float]:
        """Return, by figure, the power of the tasks with which it grows: 1 is linear."""
        first, last = self.rows[0], self.rows[-1]
        return {
            name: round(math.log(getattr(last, name) / getattr(first, name)) / math.log(last.tasks / first.tasks), 2)
            for name in _FIGURES
        }


def write_tasks(folder: Path, tasks: int) -> None:
    """Write small tasks of one image, with the words of 1000 in their instructions; every tenth has a defect."""
    for number in range(tasks):
        chance = random.Random(number)
        words = " ".join(f"word{chance.randrange(1000)}" for _ in range(_WORDS))
        task = write_task(
            folder / f"task-{number}",
            test_sh=_TESTS.format(number=number),
            instruction=f"Write {number} into /srv/answer. What follows says nothing: {words}\n",
        )
        (task / "solution/solve.sh").write_text(f"#!/bin/bash\necho {number} > /srv/answer\n", encoding="utf-8")
        if number % _DEFECT_EVERY == 0:
            (task / "tests/setup.sh").write_text("pip install pytest\n", encoding="utf-8")


def bench_audit(
    env: str, *, tasks: int, plays: bool, jobs: int, on_progress: Callable[[str], object] = lambda _: None
) -> AuditReport:
    """Audit a tenth of the tasks, or half of them where each is played, then all, each by a command of its own.

    Args:
        env: The sandbox.
        tasks: Tasks; at least 10.
        plays: Whether each task is played, too: the solution and doing nothing, each once, and the probes.
        jobs: Tasks audited at the same time.
        on_progress: Takes what was measured.

    Raises:
        UsageError: An audit ended with an error of its own.
    """
    rows: list[AuditRow] = []
    if plays:  # which builds the image
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("bench")) as name:
            write_tasks(Path(name, "tasks"), 1)
            _measured((str(Path(name, "tasks")), "--env", env, "--repeat", "1", "--output", str(Path(name, "audit"))))
    for size in (tasks // (2 if plays else 10), tasks):
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("bench")) as name:
            folder, out = Path(name, "tasks"), Path(name, "audit")
            write_tasks(folder, size)
            playing = ("--env", env, "--repeat", "1", "--no-forge", "--no-vary") if plays else ("--no-play",)
            argv = (str(folder), *playing, "--output", str(out), "--jobs", str(jobs))
            sec, peak = _measured(argv)
            again_sec, _ = _measured(argv)
            receipts = json.loads((out / "audit.json").read_text(encoding="utf-8"))["receipts"]
            found = {receipt["task"] for receipt in receipts if receipt["findings"]}
            wrong = {f"task-{number}" for number in range(0, size, _DEFECT_EVERY)}
            rows.append(
                AuditRow(
                    size,
                    round(sec, 1),
                    round(again_sec, 1),
                    round(peak / (1 << 20), 1),
                    round(_disk_bytes(out) / (1 << 20), 1),
                    len(found ^ wrong),
                )
            )
            on_progress(f"{size} tasks")
    return AuditReport(rows)


def _measured(arguments: Sequence[str]) -> tuple[float, int]:
    """Run an audit; return its seconds and its peak memory in bytes."""
    began = time.monotonic()
    command = [sys.executable, "-m", "harbor_gym", "audit", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        raise UsageError(f"the audit of {arguments[0]} ended with status {process.returncode}")
    return time.monotonic() - began, usage.ru_maxrss << 10


def _disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def format_audit(report: AuditReport) -> str:
    """Return the report as a table for people, and the growth of each figure."""
    head = ("tasks", "s", "again s", "peak MiB", "disk MiB", "missed")
    rows = [
        (f"{row.tasks}", *(f"{getattr(row, name):.1f}" for name in _FIGURES), f"{row.missed}") for row in report.rows
    ]
    growth = ", ".join(f"{name} {power:.2f}" for name, power in report.exponents().items())
    return f"{plain_table(head, rows, right=range(6))}\n\ngrowth, as a power of the tasks: {growth}"
