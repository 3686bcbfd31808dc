"""Commands in a container, by Docker's client: of any length, and killed when their time is up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from harbor.environments.base import ExecResult

from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.docker.engine import docker
from harbor_gym.sandboxes.errors import SandboxLostError
from harbor_gym.sandboxes.extensions import ExecTimeoutError
from harbor_gym.sandboxes.pipes import Output, StreamName, text_chunks

_MARK = b"harbor-gym-exec "
_ENTER = f'echo "{_MARK.decode()}$$"; exec "$0" -c "$1"'
_ENTER_BY_STDIN = f'echo "{_MARK.decode()}$$"; exec "$0" -c \'eval "$(cat)"\''
_ARGUMENT_BYTES = (128 << 10) - 1
"""Linux's limit of one argument of a process (MAX_ARG_STRLEN, less its final NUL)."""

_CHUNK_BYTES = 1 << 16
_END_TIMEOUT_SEC = 10.0
_START_SEC = 5.0
"""From its client's start until a command must have begun to be waited for when it is killed: a FIFO in place of the
container's accounts holds up the daemon, and such a command never begins."""
_KILL_SESSION = """\
for round in 1 2 3 4 5; do
  found=
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    set -- ${line##*) }
    [ "$4" = "$0" ] && [ "$1" != Z ] || continue
    found=yes
    pid=${stat#/proc/}
    kill -KILL "${pid%/stat}" 2>/dev/null
  done
  [ "$found" ] || break
done
"""
"""Kills a session, repeatedly, until no process was forked meanwhile. Source: proc(5), fields 3 and 6 of stat."""


async def run_inside(
    container: str,
    command: str,
    *,
    shell: str = "bash",
    flags: Sequence[str] = (),
    timeout_sec: float | None = None,
    emit: Callable[[str, StreamName], Awaitable[None]] | None = None,
) -> ExecResult:
    """Run a command and wait for its exit. Its stdin is empty; stderr is part of stdout, in the order of writing.

    A command that is cancelled or out of time is killed with its whole session before this returns.

    Args:
        container: Id or name.
        command: Text for the shell, of any length.
        shell: The program that reads it; the image must have ``sh``, too.
        flags: Options of ``docker exec``.
        timeout_sec: None or 0 is no limit.
        emit: Called with output as it arrives.

    Raises:
        ExecTimeoutError: The command ran out of time.
        ValueError: There is a NUL in the command.
    """
    if "\0" in command:
        raise ValueError("a command can't have a NUL in it")
    text = command.encode(errors="surrogateescape")
    is_long = len(text) > _ARGUMENT_BYTES
    entry = ["--interactive", *flags, container, "sh", "-c", _ENTER_BY_STDIN, shell]
    if not is_long:
        entry = [*flags, container, "sh", "-c", _ENTER, shell, command]
    process = await start_process(
        "docker",
        "exec",
        *entry,
        stdin=asyncio.subprocess.PIPE if is_long else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    running = _Running(container, process)
    scope = asyncio.timeout(timeout_sec or None)
    try:
        async with scope:
            return await running.finish(text if is_long else None, emit)
    except TimeoutError:
        if not scope.expired():
            raise
        raise ExecTimeoutError(f"Command timed out after {timeout_sec} seconds; it was killed") from None
    finally:
        if process.returncode is None:
            await shielded(running.kill())


class _Running:
    """One command, which prints its pid, also its session's id, before its own output."""

    def __init__(self, container: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._container = container
        self._process = process
        self._stdout = process.stdout
        self._output = Output()
        self._pid: str | None = None
        self._started = time.monotonic()

    async def finish(self, text: bytes | None, emit: Callable[[str, StreamName], Awaitable[None]] | None) -> ExecResult:
        take = None if emit is None else text_chunks(emit)
        if text is not None:
            await self._write(text)
        await self._find_pid()
        if take is not None and self._output.kept:
            await take(bytes(self._output.kept), "stdout")
        while chunk := await self._stdout.read(_CHUNK_BYTES):
            self._output.add(chunk)
            if take is not None:
                await take(chunk, "stdout")
        code = await self._process.wait()
        return ExecResult(stdout=self._output.text() or None, stderr=None, return_code=code)

    async def _write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the output has the reason
            await self._process.stdin.drain()
        self._process.stdin.close()

    async def _find_pid(self) -> None:
        """Read up to the command's start; before it there can only be errors of the client.

        Raises:
            SandboxLostError: A shell that the policy may have replaced printed something else, in one long line.
        """
        while self._pid is None:
            try:
                line = await self._stdout.readline()
            except ValueError as exc:
                raise SandboxLostError("its shell answers with one long line instead of the command's start") from exc
            if not line:
                break
            if line.startswith(_MARK):
                self._pid = line.removeprefix(_MARK).decode().strip()
            else:
                self._output.add(line)

    async def kill(self) -> None:
        """Kill the command in the container, then the client, which would leave it running if killed first."""
        with contextlib.suppress(TimeoutError, SandboxLostError):
            async with asyncio.timeout(max(1.0, self._started + _START_SEC - time.monotonic())):
                await self._find_pid()
            async with asyncio.timeout(_END_TIMEOUT_SEC):
                if self._pid is not None:
                    await docker("exec", "--user", "0", self._container, "sh", "-c", _KILL_SESSION, self._pid)
                # Reads to the end and closes the pipes, which waiting alone does not.
                await self._process.communicate()
                return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()
