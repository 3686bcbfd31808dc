"""Run a command-line tool without blocking the loop, and never leave it running."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

from harbor_gym._runtime.processes import start_process, tool_environment
from harbor_gym._runtime.rootless import USER_NAMESPACE, build_environment
from harbor_gym.sandboxes.errors import SandboxStartError

_END_GRACE_SEC = 3.0
_ERROR_TAIL_LINES = 25
_PART_BYTES = 65536
_BUILD_TAIL_LINES = 12
_SHOWN_STEP = 100
_BUILD_ERROR = re.compile(
    r'^Error: building at STEP "(?P<step>(?s:.*?))": (?P<why>.*)$|^failed to solve: (?P<whole>.*)$', re.MULTILINE
)
"""The lines in which buildah and Docker name the instruction that failed."""

_STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: .*\n", re.MULTILINE)
"""The line in which buildah names the instruction that begins."""


TIMED_OUT = 124
"""The exit status of a tool that timed out, as in timeout(1)."""


@contextlib.asynccontextmanager
async def limited(limit_sec: float, stage: Callable[[], str]) -> AsyncGenerator[None]:
    """Limit the time of a part of a sandbox's preparation.

    Args:
        limit_sec: The limit in seconds, a task's ``build_timeout_sec``.
        stage: Returns what the block is doing when the time is up, as the beginning of the error.

    Raises:
        SandboxStartError: The time was up.
    """
    scope = asyncio.timeout(limit_sec)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise SandboxStartError(f"{stage()} took longer than {limit_sec:g} s (build_timeout_sec)") from None


def tied() -> tuple[str, ...]:
    """Return the prefix of a command that ends with this process, even by SIGKILL, and begins no later than that."""
    is_left = '[ "$PPID" = "$0" ] || exit'
    return ("setpriv", "--pdeathsig", "KILL", "sh", "-c", f'{is_left}; exec "$@"', str(os.getpid()))


def contained(user_namespace: Sequence[str] = USER_NAMESPACE) -> tuple[str, ...]:
    """Return the prefix of a tool that mounts: its mounts and processes end with it, and it ends with this process.

    Args:
        user_namespace: What tells unshare(1) to make a user namespace; empty makes none.
    """
    own = ("unshare", *user_namespace, "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
    return (*tied(), *own, "--mount-proc")


def find_program(name: str) -> str | None:
    """Like ``shutil.which``, but remembers a result while the program exists: a start looks up several."""
    known = _found.get(key := (name, os.environ.get("PATH", "")))
    if known is not None and os.access(known, os.X_OK):
        return known
    path = shutil.which(name)
    if path is not None:
        _found[key] = path
    return path


_found: dict[tuple[str, str], str] = {}
"""Name and PATH → path of the program."""


async def run_tool(
    *argv: str,
    timeout_sec: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], object] | None = None,
) -> tuple[int, str]:
    """Run ``argv`` and return its exit status and its output, stdout and stderr together.

    A call that is cancelled or out of time kills the tool with all its children before it returns.

    Args:
        argv: The program and its arguments.
        timeout_sec: None is no limit.
        environment: Variables on top of this process's.
        on_line: Called with each line of the output as it comes.

    Returns:
        ``(TIMED_OUT, …)`` if it timed out.
    """
    # buildah: chroot isolation needs no runtime; overlay unless the machine's own configuration chose otherwise.
    chosen = {"STORAGE_DRIVER": "overlay", **tool_environment(), "BUILDAH_ISOLATION": "chroot", **build_environment()}
    process = await start_process(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**chosen, **(environment or {})},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_sec):
            output = await _output(process, on_line)
    except TimeoutError:
        return TIMED_OUT, f"{' '.join(argv)} took longer than {timeout_sec:g} s"
    finally:
        if process.returncode is None:
            await _end(process)
    return process.returncode or 0, output.decode("utf-8", "replace")


async def _output(process: asyncio.subprocess.Process, on_line: Callable[[str], object] | None) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    shown = 0
    while part := await process.stdout.read(_PART_BYTES):
        output += part
        end = output.rfind(b"\n") + 1
        if on_line is not None and end > shown:
            for line in output[shown:end].decode("utf-8", "replace").splitlines():
                on_line(line)
            shown = end
    await process.wait()
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt first, so that a builder removes its unfinished work; then kill."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_GRACE_SEC):
                await process.communicate()
                return


class DockerfileError(SandboxStartError):
    """A Dockerfile does not build: the same one fails again, unless what it fetches is reached later."""


def build_failure(path: Path, output: str, *, step: str = "", line: int = 0, why: str = "") -> str:
    """Return the error text for a Dockerfile that does not build: the reason first, then the output before it.

    Args:
        path: The Dockerfile.
        output: The output of buildah or Docker.
        step: The instruction that failed; empty is the one that the output names.
        line: Its line in the Dockerfile; 0 is not known.
        why: The reason; empty is the one that the output names.
    """
    found = list(_BUILD_ERROR.finditer(output))
    where = f"{path}:{line}" if line else str(path)
    last = found[-1] if found else None
    step = step or (last["step"] if last else None) or ""
    if len(step) > _SHOWN_STEP:
        step = f"{step[:_SHOWN_STEP]}…"
    if last is None or why:
        return f"{where} does not build: {': '.join(filter(None, [step, why or tail(output)]))}"
    reason = f"{step}: {last['why']}" if last["whole"] is None else last["whole"]
    *_, printed = _STEP.split(output[: last.start()])
    before = "\n".join(printed.strip().splitlines()[-_BUILD_TAIL_LINES:])
    return f"{where} does not build: {reason.strip()}" + (f"; its last lines:\n{before}" if before else "")


def tail(output: str) -> str:
    """Return the last lines of a tool's output, which have its errors."""
    return "\n".join(output.strip().splitlines()[-_ERROR_TAIL_LINES:])
