"""Start child processes so that a cancellation leaves none behind."""

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import Mapping
from typing import Any

_END_TIMEOUT_SEC = 10.0
_OWN_VARIABLES = ("PYTHONHOME", "PYTHONPATH")


def tool_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of another program, without those that configure this Python interpreter.

    Args:
        more: Variables on top of this process's.
    """
    return {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES} | dict(more or {})


def ask(
    *argv: str, timeout_sec: float | None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its status and output, decoded as UTF-8 in every locale. Blocks.

    Args:
        argv: The program and its arguments.
        timeout_sec: None is no limit.
        environment: All of its variables; None is :func:`tool_environment`.

    Raises:
        OSError: It could not be started.
        subprocess.TimeoutExpired: It ran too long and was killed.
    """
    return subprocess.run(
        argv,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=timeout_sec,
        env=tool_environment() if environment is None else dict(environment),
    )


async def start_process(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process like ``asyncio.create_subprocess_exec``, and kill it if the caller is cancelled meanwhile.

    asyncio's function may leave a process behind if it is cancelled between the fork and the connecting of the pipes.

    Args:
        argv: The program and its arguments.
        options: As ``asyncio.create_subprocess_exec`` takes them.

    Raises:
        OSError: The program could not be started.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _undo(starting)
        raise


async def _undo(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    while not starting.done():
        with contextlib.suppress(asyncio.CancelledError):  # one is on its way to the caller already
            await asyncio.wait((starting,))
    if starting.cancelled() or starting.exception() is not None:
        return
    process = starting.result()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        # Reads to the end and closes the pipes, which waiting alone does not.
        await asyncio.wait_for(process.communicate(), _END_TIMEOUT_SEC)


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to ``count``, or to its hard limit; a higher limit stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(count, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
