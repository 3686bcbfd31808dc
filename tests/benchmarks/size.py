"""What grows with a task: its context, tests, image, verifier's output and instruction, one of them made larger.

Wall-clock time includes what else the machine does; CPU time of the event loop's thread does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.procfs import size_bytes
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from tests.benchmarks.report import BenchReport, percentile
from tests.benchmarks.sandbox import write_bench_task

KINDS = ("context", "tests", "image", "output", "instruction")
"""The parts of a task that are made larger."""

_TICK_SEC = 0.001
_WARM_EPISODES = 3
_FILE_BYTES = 512


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size of one part of a task. Times are in milliseconds; of warm episodes, medians."""

    kind: str
    files: int
    """Files of that part; of an instruction, lines."""

    cold_ms: float
    """The first reset of this process, with the image's build."""

    warm_ms: float
    """A later reset."""

    grading_ms: float
    close_ms: float
    cold_stop_ms: float
    """The longest time that the event loop's thread computed without a pause, in the first episode: its CPU time."""

    stop_ms: float
    """The same, in the later episodes."""

    peak_mib: float
    """This process's largest resident memory during these episodes."""


@dataclass(frozen=True, slots=True)
class SizeReport(BenchReport):
    """The results of ``make bench ARGS=size``."""

    env: str
    rows: list[SizeRow]

    def exponents(self) -> dict[str, dict[str, float]]:
        """Return, by part and figure, the power of its files with which the figure grows from the smallest size on."""
        names = ("cold_ms", "warm_ms", "grading_ms", "close_ms", "stop_ms")
        found: dict[str, dict[str, float]] = {}
        for kind in dict.fromkeys(row.kind for row in self.rows):
            rows = [row for row in self.rows if row.kind == kind]
            first, last = rows[0], rows[-1]
            if first.files != last.files:
                found[kind] = {name: exponent(first, last, name) for name in names}
        return found


def exponent(first: SizeRow, last: SizeRow, name: str) -> float:
    """Return the power of the files with which a figure grows: 0 if it stays, 1 if it is proportional."""
    before, after = (max(getattr(row, name), _TICK_SEC * 1000) for row in (first, last))
    return round(math.log(after / before) / math.log(last.files / first.files), 2)


class _Stops:
    """The longest time that the running loop's thread computes between two of its timers."""

    def __init__(self) -> None:
        self.longest_sec = 0.0

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(_TICK_SEC)
            self.longest_sec = max(self.longest_sec, time.thread_time() - before)


@contextlib.asynccontextmanager
async def watched() -> AsyncGenerator[_Stops]:
    """Watch the running loop's stops in the block."""
    stops = _Stops()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(stops.watch())
        await asyncio.sleep(0)
        try:
            yield stops
            await asyncio.sleep(2 * _TICK_SEC)  # a stop that has just ended is seen by the next tick
        finally:
            watching.cancel()


def write_sized_task(folder: Path, kind: str, files: int) -> Path:
    """Write the benchmarks' task with one part made larger; return its directory.

    Args:
        folder: Where to.
        kind: One of :data:`KINDS`.
        files: Files to add, of 512 bytes each; to an instruction, lines.
    """
    task_dir = write_bench_task(folder / f"{kind}-{files}")
    dockerfile, test = task_dir / "environment" / "Dockerfile", task_dir / "tests" / "test.sh"
    match kind:
        case "context":
            _write_files(task_dir / "environment" / "data", files)
        case "tests":
            _write_files(task_dir / "tests" / "data", files)
        case "image":
            with dockerfile.open("a", encoding="utf-8") as text:
                text.write(f"RUN mkdir /srv/data && cd /srv/data && seq {files} | split -l 1 -a 5 -d -\n")
        case "output":
            with test.open("a", encoding="utf-8") as text:
                text.write(
                    f"mkdir /logs/verifier/data && cd /logs/verifier/data && seq {files} | split -l 1 -a 5 -d -\n"
                )
                text.write(f"head -c {files * 5000} /dev/zero | tr '\\0' 'x' | fold\n")
        case _:
            with (task_dir / "instruction.md").open("a", encoding="utf-8") as text:
                text.writelines(f"Line {number} of this instruction says nothing.\n" for number in range(files))
    return task_dir


def _write_files(folder: Path, files: int) -> None:
    for number in range(files):
        place = folder / f"{number // 100}"
        if number % 100 == 0:
            place.mkdir(parents=True)
        (place / f"{number}.txt").write_text(f"{number}\n".ljust(_FILE_BYTES, "x"), encoding="utf-8")


async def bench_size(
    env: str, *, kinds: list[str], sizes: list[int], on_progress: Callable[[str], object] = lambda _: None
) -> SizeReport:
    """Play episodes of tasks whose parts have some sizes, one after the other.

    Args:
        env: The sandbox.
        kinds: The parts, of :data:`KINDS`.
        sizes: Files of a part, in order.
        on_progress: Takes each row's part and size when it is measured.

    Raises:
        SandboxError: A sandbox did not start.
        VerifierError: An episode had no verdict.
    """
    rows: list[SizeRow] = []
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bench")) as folder:
        for kind in kinds:
            for files in sizes:
                task_dir = await asyncio.to_thread(write_sized_task, Path(folder), kind, files)
                await asyncio.sleep(2.1)  # nothing is kept of files that were written a moment ago
                rows.append(await _measured(env, task_dir, kind, files))
                on_progress(f"{kind} {files}")
    return SizeReport(env, rows)


async def _measured(env: str, task_dir: Path, kind: str, files: int) -> SizeRow:
    config = TerminalEnvConfig(task_dir=task_dir, sandbox=env)
    await asyncio.to_thread(Path("/proc/self/clear_refs").write_text, "5", "ascii")  # resets the peak, see proc(5)
    async with watched() as cold_stops:
        cold = await _episode(config)
    async with watched() as stops:
        warm = [await _episode(config) for _ in range(_WARM_EPISODES)]
    reset, grading, close = (round(percentile(times, 50) * 1000, 1) for times in zip(*warm, strict=True))
    return SizeRow(
        kind=kind,
        files=files,
        cold_ms=round(cold[0] * 1000, 1),
        warm_ms=reset,
        grading_ms=grading,
        close_ms=close,
        cold_stop_ms=round(cold_stops.longest_sec * 1000, 1),
        stop_ms=round(stops.longest_sec * 1000, 1),
        peak_mib=round((size_bytes("self/status", "VmHWM") or 0) / (1 << 20), 1),
    )


async def _episode(config: TerminalEnvConfig) -> tuple[float, float, float]:
    """Play an episode without an action; return the seconds of its reset, grading and close."""
    env = AsyncTerminalGymEnv(config)
    times = [time.monotonic()]
    try:
        await env.reset()
        times.append(time.monotonic())
        await env.finish()
        times.append(time.monotonic())
    finally:
        await env.close()
    times.append(time.monotonic())
    first, second, third, fourth = times
    return second - first, third - second, fourth - third


def format_size(report: SizeReport) -> str:
    """Return the report as a table for people, and the growth of each part's figures."""
    head = ("part", "files", "cold reset ms", "warm reset", "grading", "close", "cold stop", "stop", "peak MiB")
    rows = [
        (
            row.kind,
            f"{row.files}",
            *(f"{ms:.1f}" for ms in (row.cold_ms, row.warm_ms, row.grading_ms, row.close_ms)),
            *(f"{figure:.1f}" for figure in (row.cold_stop_ms, row.stop_ms, row.peak_mib)),
        )
        for row in report.rows
    ]
    growth = [
        f"{kind}: " + ", ".join(f"{name.removesuffix('_ms')} {power:+.2f}" for name, power in powers.items())
        for kind, powers in report.exponents().items()
    ]
    return "\n".join((plain_table(head, rows), "", "growth, as a power of the files:", *growth))
