"""An episode's wall time, CPU time and number of started processes, by phase."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.console.tables import plain_table

PHASES = ("reset", "step", "verdict", "close")
"""``step`` is a step of the script; ``verdict`` the last one, with clean-up, pristine view and verifier."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of the scripted episode. Values are means over its runs, except ``wall_ms``, a median."""

    phase: str
    times: int
    wall_ms: float
    host_cpu_ms: float
    """CPU time of this process."""

    machine_cpu_ms: float
    """CPU time of all processes of the machine, with the resolution of the kernel's ticks."""

    started: float
    """Processes and threads that started on the machine."""


@dataclass(frozen=True, slots=True)
class _Counters:
    wall_sec: float
    host_cpu_sec: float
    machine_cpu_sec: float
    started: int

    @classmethod
    def read(cls) -> _Counters:
        lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines())
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, lines["cpu"].split())
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time.perf_counter(),
            own.ru_utime + own.ru_stime,
            (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"),
            int(lines["processes"]),
        )


class PhaseClock:
    """Collects each phase's samples. Linux only: it reads ``/proc/stat``."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[_Counters, _Counters]]] = {phase: [] for phase in PHASES}

    @contextlib.contextmanager
    def time(self, phase: str) -> Generator[None]:
        """Measure the block as one run of a phase."""
        before = _Counters.read()
        yield
        self._samples[phase].append((before, _Counters.read()))

    def rows(self) -> list[PhaseRow]:
        """Return one row per phase."""
        return [_row(phase, samples) for phase, samples in self._samples.items() if samples]


def _row(phase: str, samples: list[tuple[_Counters, _Counters]]) -> PhaseRow:
    return PhaseRow(
        phase,
        len(samples),
        round(statistics.median(after.wall_sec - before.wall_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.host_cpu_sec - before.host_cpu_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.machine_cpu_sec - before.machine_cpu_sec for before, after in samples) * 1000, 1),
        round(statistics.fmean(after.started - before.started for before, after in samples), 1),
    )


def format_phases(rows: list[PhaseRow]) -> str:
    """Return the rows as a table for people."""
    head = ("phase", "times", "wall ms", "host CPU ms", "machine's CPU ms", "started")
    lines = [
        (
            row.phase,
            str(row.times),
            *(f"{x:.1f}" for x in (row.wall_ms, row.host_cpu_ms, row.machine_cpu_ms, row.started)),
        )
        for row in rows
    ]
    return plain_table(head, lines, right=range(1, len(head)))
