"""Time until a sandbox shows its prompt, one at a time and many at once, and the memory of an idle sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.config import PoolLimits, TerminalEnvConfig
from harbor_gym.episode.prepared import PreparedEpisode
from harbor_gym.errors import HarborGymError, SandboxStartError
from harbor_gym.pool import WarmPool
from tests.benchmarks.memory import measure_idle_memory
from tests.benchmarks.report import BenchReport, percentile, rotate
from tests.benchmarks.sandbox import bench_task, started_environment

HARBORS_DOCKER = "harbor.environments.docker.docker:DockerEnvironment"
"""Harbor's own Docker sandbox."""

OURS, POOL, PEERS_RUN, HARBOR = "reset", "reset from a warm pool", "raw", "Harbor's DockerEnvironment"

_POOL_SIZE = 4
_IDLE_SANDBOXES = 16
_RAW_IMAGE = "debian:bookworm-slim"


@dataclass(frozen=True, slots=True)
class ResetRow:
    """One implementation with ``at_once`` concurrent sandboxes. Times are medians in milliseconds."""

    way: str
    at_once: int
    runs: int
    ready_ms: float
    """Until the first prompt could be read; for a peer without a terminal, until its sandbox took commands."""

    ready_p95_ms: float
    all_ready_ms: float
    """Until the last of the concurrent sandboxes was ready."""

    close_ms: float
    sandbox_ms: float | None = None
    """The sandbox's part of ``ready_ms``."""

    terminal_ms: float | None = None
    """The terminal's part of ``ready_ms``."""


@dataclass(frozen=True, slots=True)
class ResetReport(BenchReport):
    """The results of ``make bench ARGS=reset``."""

    env: str
    rows: list[ResetRow]
    idle_bytes: int | None
    """Memory of one more idle sandbox, see :class:`tests.benchmarks.memory.IdleMemory`."""

    unavailable: dict[str, str]
    """Peer → why it could not be run here."""

    def row(self, way: str, at_once: int = 1) -> ResetRow | None:
        """Return one row, if it was measured."""
        return next((row for row in self.rows if (row.way, row.at_once) == (way, at_once)), None)

    def ratios(self) -> dict[str, float]:
        """Return each peer's time as a multiple of ours, in the same run with as many concurrent sandboxes."""
        return {
            f"{row.way}, {row.at_once} at once": round(
                (row.ready_ms + row.close_ms) / (ours.ready_ms + ours.close_ms), 2
            )
            for row in self.rows
            if row.way not in (OURS, POOL) and (ours := self.row(OURS, row.at_once)) is not None
        }

    @override
    def as_object(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ratios": self.ratios()}


@dataclass(slots=True)
class ResetSample:
    """One measurement of a sandbox."""

    ready_sec: float
    close_sec: float = 0.0
    sandbox_sec: float | None = None
    terminal_sec: float | None = None


type Hold = Callable[[], contextlib.AbstractAsyncContextManager[ResetSample]]
"""Starts one sandbox, yields its times, and stops it."""


async def bench_reset(sandbox: str, *, at_once: list[int], repeat: int) -> ResetReport:
    """Measure create → first prompt → close of one sandbox type, and of its peers in the same run.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        at_once: Numbers of concurrent sandboxes to measure, in addition to 1.
        repeat: How often a single sandbox is measured.

    Raises:
        SandboxStartError: A sandbox did not start.
    """
    with bench_task() as task_dir:
        config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox)
        async with hold_ours(config):
            pass  # Builds the image and imports everything; not counted.
        rows: list[ResetRow] = []
        unavailable: dict[str, str] = {}
        rows.append(await _measure(OURS, lambda: hold_ours(config), 1, repeat))
        rows.append(await _measure_pool(config, repeat))
        for way, hold in _peers(sandbox, config).items():
            for fleet in (1, *(size for size in at_once if way == HARBOR)):
                try:
                    rows.append(await _measure(way, hold, fleet, min(repeat, 3) if way == HARBOR else repeat))
                except SandboxStartError as exc:
                    unavailable[way] = str(exc)
        rows += [await _measure(OURS, lambda: hold_ours(config), fleet, 1) for fleet in at_once]
        return ResetReport(sandbox, rows, await _idle_bytes(config), unavailable)


async def _measure(way: str, hold: Hold, at_once: int, repeat: int) -> ResetRow:
    (row,) = await measure_in_turn({way: hold}, at_once, repeat)
    return row


async def measure_in_turn(holds: Mapping[str, Hold], at_once: int, repeat: int) -> list[ResetRow]:
    """Measure several implementations in turn, so that other load on the machine affects all alike.

    Args:
        holds: The implementations by name.
        at_once: Concurrent sandboxes.
        repeat: Measurements of each implementation.

    Raises:
        SandboxStartError: A sandbox did not start.
    """
    samples: dict[str, list[ResetSample]] = {way: [] for way in holds}
    walls: dict[str, list[float]] = {way: [] for way in holds}
    for number in range(repeat):
        for way in rotate(list(holds), number):
            fleet, wall = await _fleet(holds[way], at_once)
            samples[way] += fleet
            walls[way].append(wall)
    return [_row(way, at_once, samples[way], walls[way]) for way in holds]


def _row(way: str, at_once: int, samples: list[ResetSample], walls: list[float]) -> ResetRow:
    def median_ms(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(percentile(known, 50) * 1000, 1) if known else None

    ready = [sample.ready_sec for sample in samples]
    return ResetRow(
        way=way,
        at_once=at_once,
        runs=len(samples),
        ready_ms=round(percentile(ready, 50) * 1000, 1),
        ready_p95_ms=round(percentile(ready, 95) * 1000, 1),
        all_ready_ms=round(percentile(walls, 50) * 1000, 1),
        close_ms=median_ms([sample.close_sec for sample in samples]) or 0.0,
        sandbox_ms=median_ms([sample.sandbox_sec for sample in samples]),
        terminal_ms=median_ms([sample.terminal_sec for sample in samples]),
    )


async def _fleet(hold: Hold, size: int) -> tuple[list[ResetSample], float]:
    """Hold ``size`` sandboxes at once; return their samples, and the seconds until the last was ready."""
    ready = asyncio.Barrier(size)
    walls: list[float] = []
    started = time.perf_counter()

    async def item() -> ResetSample:
        async with contextlib.AsyncExitStack() as stack:
            sample = await stack.enter_async_context(hold())
            walls.append(time.perf_counter() - started)
            await ready.wait()
            closing = time.perf_counter()
            await stack.aclose()
            sample.close_sec = time.perf_counter() - closing
        return sample

    try:
        async with task_group() as group:
            tasks = [group.create_task(item()) for _ in range(size)]
    except HarborGymError as exc:
        raise SandboxStartError(f"{size} at once: {exc}") from exc
    return [task.result() for task in tasks], max(walls)


@contextlib.asynccontextmanager
async def hold_ours(config: TerminalEnvConfig) -> AsyncGenerator[ResetSample]:
    """Start a sandbox with its terminal, as an episode does."""
    prepared = PreparedEpisode(config)
    try:
        started = time.perf_counter()
        await prepared.prepare()
        await prepared.first_screen()
        seconds = time.perf_counter() - started
        yield ResetSample(seconds, 0.0, prepared.episode.sandbox_start_sec, prepared.terminal_open_sec)
    finally:
        await prepared.close()


async def _measure_pool(config: TerminalEnvConfig, repeat: int) -> ResetRow:
    samples: list[ResetSample] = []
    async with WarmPool(config, size=_POOL_SIZE, limits=PoolLimits(max_starts_at_once=2)) as pool:
        for _ in range(repeat):
            while pool.metrics()["pool/ready"] < pool.size:  # noqa: ASYNC110 - a pool does not report that it is full
                await asyncio.sleep(0.02)
            started = time.perf_counter()
            lease = await pool.lease()
            sample = ResetSample(time.perf_counter() - started)
            closing = time.perf_counter()
            await lease.prepared.close()
            sample.close_sec = time.perf_counter() - closing
            samples.append(sample)
    return _row(POOL, 1, samples, [sample.ready_sec for sample in samples])


# --- peers -----------------------------------------------------------------------------------------------------------


def _peers(sandbox: str, config: TerminalEnvConfig) -> dict[str, Hold]:
    if sandbox == "local":
        return {f"{PEERS_RUN} bwrap": lambda: _bubblewrap(config)}
    if sandbox == "docker":
        return {
            f"{PEERS_RUN} docker run": lambda: _command("docker", "run", "--rm", "--network=none", _RAW_IMAGE, "true"),
            HARBOR: lambda: _harbors_docker(config),
        }
    return {}


@contextlib.asynccontextmanager
async def _bubblewrap(config: TerminalEnvConfig) -> AsyncGenerator[ResetSample]:
    """The lower bound: namespaces around one command on the same image, read-only, without a supervisor."""
    from harbor_gym._runtime.cache import cache_dir
    from harbor_gym.sandboxes.images.build import ImageSource, build_image

    image = await build_image(ImageSource(config.task_dir / "environment"))
    place = cache_dir() / "mountpoint"
    place.mkdir(exist_ok=True)
    lowers = ":".join(map(str, image.directories))
    mounted = f'mount -t overlay -o "lowerdir={lowers}" overlay "{place}" && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh", "bwrap", "--unshare-all"]
    argv += ["--die-with-parent", "--ro-bind", str(place), "/", "--proc", "/proc"]
    async with _command(*argv, "--dev", "/dev", "true") as sample:
        yield sample


@contextlib.asynccontextmanager
async def _command(*argv: str) -> AsyncGenerator[ResetSample]:
    """Time a command from its start to its end, the peer's whole life cycle."""
    if shutil.which(argv[0]) is None:
        raise SandboxStartError(f"{argv[0]} is not installed")
    quiet = asyncio.subprocess.DEVNULL
    started = time.perf_counter()
    process = await start_process(*argv, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0:
        raise SandboxStartError(f"{' '.join(argv)} ended with status {status}")
    yield ResetSample(time.perf_counter() - started)


@contextlib.asynccontextmanager
async def _harbors_docker(config: TerminalEnvConfig) -> AsyncGenerator[ResetSample]:
    started = time.perf_counter()
    async with started_environment(HARBORS_DOCKER, config.task_dir) as environment:
        await environment.exec("true")
        yield ResetSample(time.perf_counter() - started)


async def _idle_bytes(config: TerminalEnvConfig) -> int | None:
    """Return the memory of one idle sandbox in bytes; None if it does not run on this machine."""
    if config.sandbox not in ("local", "docker"):
        return None
    idle = await measure_idle_memory(config, count=_IDLE_SANDBOXES)
    return round(idle.sandbox_bytes)


def format_reset(report: ResetReport) -> str:
    """Return the report as a table for people."""

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    head = ("way", "at once", "ready ms", "p95", "all ready", "sandbox", "terminal", "close")
    lines = [
        (
            *(row.way, str(row.at_once), cell(row.ready_ms), cell(row.ready_p95_ms), cell(row.all_ready_ms)),
            *(cell(row.sandbox_ms), cell(row.terminal_ms), cell(row.close_ms)),
        )
        for row in report.rows
    ]
    text = [plain_table(head, lines, right=range(1, len(head)))]
    if report.idle_bytes is not None:
        text.append(f"\nidle sandbox: {report.idle_bytes / (1 << 20):.1f} MiB")
    text += [f"{way}: {ratio:g} times ours" for way, ratio in report.ratios().items()]
    text += [f"not run: {way}: {why}" for way, why in report.unavailable.items()]
    return "\n".join(line.rstrip() for line in text)
