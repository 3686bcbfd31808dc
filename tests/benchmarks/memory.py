"""Measure the memory of idle sandboxes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harbor_gym._runtime.procfs import PROC, descendants, process_ids, size_bytes
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.episode.prepared import PreparedEpisode
from tests.benchmarks.report import BenchReport

_FILES_COMMAND = "df -k / | tail -n 1 | awk '{print $3}'"
"""Prints the used KiB of a local sandbox's root, an overlay on its own tmpfs."""


@dataclass(frozen=True, slots=True)
class IdleMemory(BenchReport):
    """The memory of one more idle sandbox with an open terminal, in bytes: the mean of ``count``, after a first one.

    The first sandbox is not counted, since it includes all shared parts: imports, the fork server, pages of programs.
    Sizes of processes are proportional (PSS): a page that n processes share counts 1/n for each.
    """

    count: int
    host_bytes: float
    """Memory of this process."""

    below_bytes: float
    """Memory of the sandbox's processes: descendants of this process, or the container's."""

    files_bytes: float
    """Memory of the sandbox's files."""

    @property
    def sandbox_bytes(self) -> float:
        """The part outside this process."""
        return self.below_bytes + self.files_bytes


async def measure_idle_memory(config: TerminalEnvConfig, *, count: int) -> IdleMemory:
    """Start ``count`` sandboxes after a first one, and return the mean memory of each.

    Args:
        config: The task and the sandbox.
        count: Sandboxes to average over. The more there are, the less a shared page counts.

    Raises:
        SandboxError: A sandbox did not start.
    """
    async with _prepared(config, 1):
        before = await asyncio.to_thread(_sizes)
        async with _prepared(config, count) as prepared:
            after = await asyncio.to_thread(_sizes)
            containers = [await _container_bytes(item, config.sandbox) for item in prepared]
            files = [await _file_bytes(item) for item in prepared] if config.sandbox == "local" else [0]
    host, below = ((now - then) / count for now, then in zip(after, before, strict=True))
    return IdleMemory(count, host, below + fmean(containers), fmean(files))


@contextlib.asynccontextmanager
async def _prepared(config: TerminalEnvConfig, count: int) -> AsyncGenerator[Sequence[PreparedEpisode]]:
    episodes = [PreparedEpisode(config) for _ in range(count)]
    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                group.create_task(_open(episode))
        yield episodes
    finally:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                group.create_task(episode.close())


async def _open(episode: PreparedEpisode) -> None:
    await episode.prepare()
    await episode.first_screen()


def _sizes() -> tuple[int, int]:
    """Return the bytes of this process, and of its descendants."""
    return pss_bytes([os.getpid()]), pss_bytes(descendants(os.getpid()))


async def _container_bytes(episode: PreparedEpisode, sandbox: str) -> int:
    if sandbox != "docker":
        return 0
    name = await episode.phase.environment.exec("cat /etc/hostname")
    return await asyncio.to_thread(lambda: pss_bytes(processes_of_container((name.stdout or "").strip())))


async def _file_bytes(episode: PreparedEpisode) -> int:
    answer = await episode.phase.environment.exec(_FILES_COMMAND)
    return int((answer.stdout or "0").strip() or 0) << 10


def processes_of_container(container: str) -> set[int]:
    """Return the ids of a container's processes and its shim.

    Args:
        container: The container's id, or its first twelve characters.
    """
    found: set[int] = set()
    for pid in process_ids():
        for name in ("cgroup", "cmdline"):
            try:
                text = (PROC / str(pid) / name).read_text(encoding="utf-8")
            except OSError:
                continue
            if re.search(rf"(?:docker[/-]|-id\x00){re.escape(container)}", text):
                found.add(pid)
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Return the sum of the processes' proportional set sizes, in bytes."""
    return sum(size_bytes(f"{pid}/smaps_rollup", "Pss") or 0 for pid in pids)


def format_idle(idle: IdleMemory) -> str:
    """Return the report as a sentence for people."""
    host, below, files = (f"{size / 1024:.0f}" for size in (idle.host_bytes, idle.below_bytes, idle.files_bytes))
    return (
        f"{idle.count} idle environments, each {host} KiB in this process, {below} in processes outside it and {files} "
        "in files of the sandbox"
    )
