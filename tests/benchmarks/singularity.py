"""Apptainer sandboxes beside Harbor's own ``singularity``, on one image in one run: resets and steps in one table.

Harbor's starts a Python server inside the image, so the image brings its requirements: Python, uvicorn, FastAPI, tmux.
Nothing is left for its start to install, and no package index for it to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.procfs import PROC, descendants, read_stat
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import MissingDependencyError
from harbor_gym.sandboxes.apptainer.options import default_image_dir
from harbor_gym.sandboxes.apptainer.programs import find_runtime
from harbor_gym.sandboxes.apptainer.sif.store import provide_sif
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.tools import run_tool, tail
from tests.benchmarks.report import BenchReport
from tests.benchmarks.reset import OURS, ResetRow, ResetSample, hold_ours, measure_in_turn
from tests.benchmarks.sandbox import BENCH_DOCKERFILE, ExecCounter, bench_task, started_environment
from tests.benchmarks.steps import (
    HARBOR,
    PERSISTENT,
    HarborTerminal,
    Implementation,
    OurTerminal,
    StepReport,
    summarize,
    take_turns,
)

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

HARBORS_SINGULARITY = "harbor.environments.singularity.singularity:SingularityEnvironment"
"""Harbor's own sandbox as it is, without anything of ours."""

_SANDBOX = "apptainer"
_SERVER_PACKAGES = ("uvicorn", "fastapi")
"""Source: Harbor 0.24, environments/singularity/bootstrap.sh."""

_IMAGE_PYTHON = "3.11"
"""Of Debian 12, which the image stands on."""

_MEMORY_MB = 200
_HOG_NAME = "perl"
_HOG = "perl -e 'push @x, \"x\" x (8 << 20) and select undef, undef, undef, 0.01 for 1..40; sleep 10'"
_HOG_TEXT = f"320 MiB taken in 0.4 s and held for 10 s, with memory_mb = {_MEMORY_MB}"
_WATCH_SEC = 0.01
_DOWNLOAD_TIMEOUT_SEC = 600.0
_BUILD_TIMEOUT_SEC = 1800.0
# asciinema: Harbor's start would install it too; a terminal without a recording does not run it.
_SERVER = f"""\
COPY packages /opt/packages
RUN python3 -m venv --without-pip /opt/harbor-server \\
    && mv /opt/packages/* /opt/harbor-server/lib/python{_IMAGE_PYTHON}/site-packages/ \\
    && /opt/harbor-server/bin/python3 -c 'import uvicorn, fastapi' \\
    && ln -s /bin/true /usr/local/bin/asciinema && rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
"""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """The end of a command that takes more memory than its sandbox has."""

    way: str
    highest_mib: float
    """Its largest resident size, read a hundred times a second."""

    seconds: float
    """From its start to its end, by a kill or by itself."""

    is_ended: bool
    """Whether it was ended before its own end."""

    lives_on: bool
    """Whether the sandbox runs commands afterwards."""


@dataclass(frozen=True, slots=True)
class SingularityReport(BenchReport):
    """The results of ``make bench ARGS=singularity``."""

    resets: list[ResetRow]
    """Ours and Harbor's, for each number at once."""

    steps: StepReport
    """Our persistent transport in our sandbox, Harbor's ``TmuxSession`` in Harbor's."""

    memory: list[MemoryRow]

    @property
    @override
    def is_right(self) -> bool:
        """Return whether every step of ours showed the right lines."""
        return self.steps.is_right

    @override
    def as_object(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"steps": self.steps.as_object()}


async def bench_singularity(
    *, at_once: int, repeat: int, on_progress: Callable[[int], None] = lambda _: None
) -> SingularityReport:
    """Measure both kinds of sandboxes, turn by turn.

    Args:
        at_once: Sandboxes of the fleet that is measured beside the single one.
        repeat: Resets and repetitions of every step.
        on_progress: Called with the number of finished repetitions of the steps.

    Raises:
        MissingDependencyError: Apptainer is missing, or uv can't download the packages of Harbor's server.
        SandboxStartError: A sandbox did not start.
    """
    with bench_task() as task_dir, _singularity_in_path(task_dir.parent):
        await _make_task(task_dir)
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=_SANDBOX)
        holds = {OURS: lambda: hold_ours(config), HARBOR: lambda: _hold_harbors(task_dir)}
        async with hold_ours(config):
            pass  # everything is imported: not counted
        resets = await measure_in_turn(holds, 1, repeat)
        resets += await measure_in_turn(holds, at_once, 1)
        steps = await _measure_steps(task_dir, repeat, on_progress)
        await asyncio.to_thread(_append, task_dir / "task.toml", f"memory_mb = {_MEMORY_MB}\n")
        memory = [
            await _measure_memory(way, sandbox, task_dir)
            for way, sandbox in ((OURS, _SANDBOX), (HARBOR, HARBORS_SINGULARITY))
        ]
    return SingularityReport(resets, steps, memory)


@contextlib.contextmanager
def _singularity_in_path(folder: Path) -> Generator[None]:
    """Let Harbor find Apptainer by the one name that it knows."""
    if shutil.which("singularity") is not None:
        yield
        return
    (folder / "bin").mkdir()
    (folder / "bin" / "singularity").symlink_to(find_runtime())
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


async def _make_task(task_dir: Path) -> None:
    """Make a SIF file with Harbor's server's requirements the task's image."""
    environment = task_dir / "environment"
    await asyncio.to_thread((environment / "Dockerfile").write_text, f"{BENCH_DOCKERFILE}{_SERVER}")
    await _download(environment / "packages")
    stored = await provide_sif(ImageSource(environment), default_image_dir(), build_timeout_sec=_BUILD_TIMEOUT_SEC)
    await asyncio.to_thread(_append, task_dir / "task.toml", f'[environment]\ndocker_image = "{stored.image.path}"\n')


def _append(file: Path, text: str) -> None:
    file.write_text(f"{file.read_text(encoding='utf-8')}{text}", encoding="utf-8")


async def _download(target: Path) -> None:
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target), "--only-binary=:all:"]
    command += ["--python-version", _IMAGE_PYTHON, "--python-platform", f"{os.uname().machine}-manylinux_2_28"]
    code, output = await run_tool(*command, *_SERVER_PACKAGES, timeout_sec=_DOWNLOAD_TIMEOUT_SEC)
    if code != 0:
        raise MissingDependencyError(f"what Harbor's server needs can't be downloaded by uv: {tail(output)}")


@contextlib.asynccontextmanager
async def _hold_harbors(task_dir: Path) -> AsyncGenerator[ResetSample]:
    started = time.perf_counter()
    async with started_environment(HARBORS_SINGULARITY, task_dir) as environment:
        sandbox_sec = time.perf_counter() - started
        await HarborTerminal(environment).open()
        ready_sec = time.perf_counter() - started
        yield ResetSample(ready_sec, 0.0, sandbox_sec, ready_sec - sandbox_sec)


async def _measure_steps(task_dir: Path, repeat: int, on_progress: Callable[[int], None]) -> StepReport:
    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(started_environment(_SANDBOX, task_dir))
        theirs = await stack.enter_async_context(started_environment(HARBORS_SINGULARITY, task_dir))
        players: list[tuple[Implementation, ExecCounter]] = [
            (OurTerminal(ours, PERSISTENT), ExecCounter(ours)),
            (HarborTerminal(theirs), ExecCounter(theirs)),
        ]
        for terminal, _ in players:
            await terminal.open()
            stack.push_async_callback(terminal.close)
        samples = await take_turns(players, repeat, on_progress)
        fallbacks = {terminal.name: terminal.fallbacks for terminal, _ in players}
    return summarize(samples, sandbox=_SANDBOX, repeat=repeat, fallbacks=fallbacks, unavailable={})


async def _measure_memory(way: str, sandbox: str, task_dir: Path) -> MemoryRow:
    async with started_environment(sandbox, task_dir) as environment:
        sizes = [0]
        watching = asyncio.ensure_future(_watch_hog(sizes))
        started = time.perf_counter()
        try:
            is_ended = not await _runs(environment, _HOG)
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
        seconds = time.perf_counter() - started
        lives_on = await _runs(environment, "true")
    return MemoryRow(way, round(max(sizes) / (1 << 20), 1), round(seconds, 2), is_ended, lives_on)


async def _runs(environment: BaseEnvironment, command: str) -> bool:
    try:
        return (await environment.exec(command)).return_code == 0
    except Exception:  # the boundary to Harbor: a sandbox that is gone raises its client's errors
        return False


async def _watch_hog(sizes: list[int]) -> None:
    while True:
        pids = [stat.pid for stat in filter(None, map(read_stat, descendants(os.getpid()))) if stat.name == _HOG_NAME]
        sizes.append(sum(map(_resident_bytes, pids)))
        await asyncio.sleep(_WATCH_SEC)


def _resident_bytes(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def format_singularity(report: SingularityReport) -> str:
    """Return the report as one table for people."""
    lines: list[tuple[str, ...]] = []
    for at_once in dict.fromkeys(row.at_once for row in report.resets):
        ours, theirs = (
            next(row for row in report.resets if (row.way, row.at_once) == (way, at_once)) for way in (OURS, HARBOR)
        )
        if at_once == 1:
            lines.append(_line("reset: sandbox", ours.sandbox_ms or 0.0, theirs.sandbox_ms or 0.0))
            lines.append(_line("reset: to the first prompt", ours.ready_ms, theirs.ready_ms))
            lines.append(_line("close", ours.close_ms, theirs.close_ms))
        else:
            lines.append(_line(f"reset: {at_once} at once, all", ours.all_ready_ms, theirs.all_ready_ms))
    by_name = {(row.row, row.implementation): row for row in report.steps.rows}
    for name in dict.fromkeys(row.row for row in report.steps.rows):
        ours, theirs = by_name[name, PERSISTENT], by_name[name, HARBOR]
        right = tuple(f"{row.correct}/{row.of}" for row in (ours, theirs))
        lines.append((*_line(f"step: {name}", ours.median_ms, theirs.median_ms), *right))
    width = max(map(len, lines))
    cells = [(*line, *[""] * (width - len(line))) for line in lines]
    head = ("median ms", "apptainer", "Harbor's singularity", "times", "right", "Harbor's right")
    table = plain_table(head, cells, right=range(1, len(head)))
    return "\n".join([table, "", f"{_HOG_TEXT}:", *map(_sentence, report.memory)])


def _sentence(row: MemoryRow) -> str:
    end = "killed" if row.is_ended else "not killed"
    rest = "runs further commands" if row.lives_on else "is gone"
    name = "apptainer" if row.way == OURS else "Harbor's singularity"
    return f"{name}: {end} after {row.seconds:.1f} s, {row.highest_mib:.0f} MiB at most; the sandbox {rest}"


def _line(name: str, ours_ms: float, theirs_ms: float) -> tuple[str, ...]:
    return name, f"{ours_ms:.1f}", f"{theirs_ms:.1f}", f"{theirs_ms / ours_ms:.1f}" if ours_ms else ""
