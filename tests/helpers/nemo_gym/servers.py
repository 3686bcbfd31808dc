"""NeMo Gym's own commands, in the environment that the tests run in."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from harbor_gym._runtime.procfs import descendants, read_stat
from tests.helpers.patience import eventually

BIN = Path(sys.executable).parent
HEAD_PORT = 11000
"""Where NeMo Gym's commands look for its head server."""

START_TIMEOUT_SEC, RUN_TIMEOUT_SEC, STOP_TIMEOUT_SEC = 900.0, 900.0, 60.0
_READY = "servers ready!"
"""Before that, the log counts: "2 / 5 servers ready."."""
_PR_SET_CHILD_SUBREAPER = 36
_SERVERS = (
    "responses_api_agents/harbor_gym_agent",
    "responses_api_models/vllm_model",
    "environment_servers/legacy_agent",
)


def command(*words: str) -> list[str]:
    """Return the arguments of one of NeMo Gym's commands."""
    return [str(BIN / "gym"), *words]


def environment(project: Path) -> dict[str, str]:
    """Return the environment of NeMo Gym's processes: no calls home, and files below the project only."""
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # no task of this run is Ray's
        "RAY_TMPDIR": str(project / "ray"),
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
    }


def require_head_port() -> None:
    """Fail where another NeMo Gym, or any other program, listens on the head server's port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", HEAD_PORT))


def use_this_environment(project: Path) -> str:
    """Return the setting with which every server runs in the tests' environment, and not in one that uv makes."""
    for server in _SERVERS:
        folder = project / "environments" / server
        folder.mkdir(parents=True)
        (folder / ".venv").symlink_to(BIN.parent)
    return f"+uv_venv_dir={project / 'environments'}"


@asynccontextmanager
async def gym_env_start(project: Path, config_paths: Sequence[str], *words: str) -> AsyncGenerator[list[str]]:
    """Start NeMo Gym's servers and wait until all of them answer. SIGTERM at the end.

    Ray gives its own processes 30 s, however busy the machine is: where that was not enough, they start again.

    Yields:
        A list that has, after the end, the processes that outlived the servers.
    """
    require_head_port()
    left: list[str] = []
    with _adopted_orphans():
        before = descendants(os.getpid())
        async with contextlib.AsyncExitStack() as stack:
            for attempts_left in (2, 1, 0):
                try:
                    await stack.enter_async_context(_started(project, config_paths, *words))
                except SlowRayError:
                    if not attempts_left:
                        raise
                else:
                    yield left
                    break
        left += await _outliving(before)


@contextmanager
def _adopted_orphans() -> Generator[None]:
    """Make this process the parent of each process below it whose own parent ends."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def _outliving(before: set[int]) -> list[str]:
    """Return this process's new descendants that still run after the time in which all should have ended."""
    with contextlib.suppress(TimeoutError):
        await eventually(lambda: not _running(before))
    return _running(before)


def _running(before: set[int]) -> list[str]:
    found = list(filter(None, map(read_stat, descendants(os.getpid()) - before)))
    for stat in found:
        if stat.has_exited and stat.parent == os.getpid():
            os.waitpid(stat.pid, 0)
    return [f"{stat.pid} {stat.name}" for stat in found if not stat.has_exited]


class SlowRayError(AssertionError):
    """Ray gave up on its own processes."""


@asynccontextmanager
async def _started(project: Path, config_paths: Sequence[str], *words: str) -> AsyncGenerator[None]:
    log = project / "servers.log"
    configs = [word for path in config_paths for word in ("--config", path)]
    arguments = command("env", "start", *configs, *words, "+skip_venv_if_present=true")
    with log.open("wb") as output:
        servers = await asyncio.create_subprocess_exec(
            *arguments, cwd=project, env=environment(project), stdout=output, stderr=output, start_new_session=True
        )
    try:
        await _wait_until_ready(servers, log)
        yield
    finally:
        await _stop(servers)


async def gym_eval_run(project: Path, rows: Path, output: Path, *words: str) -> list[dict[str, Any]]:
    """Play every row, and return the rows that came back."""
    await gym(project, "eval", "run", "--no-serve", "--input", str(rows), "--output", str(output), *words)
    return [json.loads(line) for line in (await _read(output)).splitlines()]


async def gym(project: Path, *words: str) -> str:
    """Run one of NeMo Gym's commands, which must succeed, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *command(*words),
        cwd=project,
        env=environment(project),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(RUN_TIMEOUT_SEC):
            text, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, text.decode()[-6000:]
    return text.decode()


async def _wait_until_ready(servers: asyncio.subprocess.Process, log: Path) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_SEC):
            while _READY not in (text := await _read(log)):
                if servers.returncode is not None:
                    kind = SlowRayError if "node timed out during startup" in text else AssertionError
                    raise kind(f"the servers ended:\n{text[-6000:]}")
                await asyncio.sleep(0.25)
    except TimeoutError:
        raise AssertionError(f"the servers were not ready in time:\n{(await _read(log))[-6000:]}") from None


async def _read(file: Path) -> str:
    return await asyncio.to_thread(file.read_text, errors="replace")


async def _stop(servers: asyncio.subprocess.Process) -> None:
    if servers.returncode is None:
        servers.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SEC):
            await servers.wait()
    finally:
        # A group of its own: nothing that it started outlives the test.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(servers.pid, signal.SIGKILL)
        await servers.wait()
