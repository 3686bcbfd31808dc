"""What a Compose file's services cost an episode's start: beside one container, and beside Docker Compose."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.config import TerminalEnvConfig
from tests.benchmarks.report import BenchReport
from tests.benchmarks.reset import ResetRow, hold_ours, measure_in_turn
from tests.benchmarks.sandbox import write_bench_task

ALONE, LOCAL, DOCKER = "local, one container", "local, three services", "docker, three services"

_COMPOSE = """\
services:
  main: {depends_on: {web: {condition: service_healthy}}}
  web: {image: debian:bookworm-slim, command: sleep infinity, depends_on: [data],
        healthcheck: {test: "true", interval: 1s}}
  data: {image: debian:bookworm-slim, command: sleep infinity, healthcheck: {test: "true", interval: 1s}}
"""


@dataclass(frozen=True, slots=True)
class ServicesReport(BenchReport):
    """The same image with and without two services beside it, in turn."""

    rows: list[ResetRow]


async def measure_services(repeat: int, *, with_docker: bool) -> ServicesReport:
    """Measure create → first prompt → close of each way.

    Args:
        repeat: Episodes of each.
        with_docker: Measure Docker Compose as well.

    Raises:
        SandboxStartError: A sandbox did not start.
    """
    with _tasks() as (alone, together):
        configs = {
            ALONE: TerminalEnvConfig(task_dir=alone, sandbox="local"),
            LOCAL: TerminalEnvConfig(task_dir=together, sandbox="local"),
        }
        if with_docker:
            configs[DOCKER] = TerminalEnvConfig(task_dir=together, sandbox="docker")
        for config in configs.values():
            async with hold_ours(config):
                pass  # Builds the images; not counted.
        holds = {way: lambda config=config: hold_ours(config) for way, config in configs.items()}
        return ServicesReport(await measure_in_turn(holds, 1, repeat))


@contextlib.contextmanager
def _tasks() -> Generator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bench")) as folder:
        alone, together = (write_bench_task(Path(folder) / name) for name in ("alone", "together"))
        (together / "environment" / "docker-compose.yaml").write_text(_COMPOSE, encoding="utf-8")
        yield alone, together


def format_services(report: ServicesReport) -> str:
    """Return the report as a table for people."""
    first, rows = report.rows[0], report.rows
    head = ("way", "ready ms", "close ms", "of one container")
    lines = [
        (row.way, f"{row.ready_ms:.0f}", f"{row.close_ms:.0f}", f"{row.ready_ms / first.ready_ms:.2f}") for row in rows
    ]
    return plain_table(head, lines, right=range(1, len(head)))
