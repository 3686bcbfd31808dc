"""The command of a service: started, started again as its restart policy says, its output kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

from harbor_gym._runtime.errors import HarborGymError
from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.sandboxes.compose.model import Restart
from harbor_gym.sandboxes.errors import SandboxError
from harbor_gym.sandboxes.piped import PipedCommand

_MAX_LOG_BYTES = 10 << 20
_LAST_BYTES = 2000
_READ_BYTES = 1 << 14
_FIRST_PAUSE_SEC, _LAST_PAUSE_SEC, _LASTING_SEC = 0.1, 60.0, 10.0
"""Docker's pauses before a restart, which double until a run lasts ten seconds; see its restartmanager."""


class ServiceProcess:
    """One service's command. It ends with the sandbox.

    Args:
        start: Starts the command, with both outputs on its ``stdout``.
        clear: Ends all processes of the sandbox, with some seconds from SIGTERM to SIGKILL; one call at a time.
        restart: When it is started again.
        log: The file for the first 10 MiB of its output.
        keeps_input: Whether its standard input stays open.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[PipedCommand]],
        clear: Callable[[float], Awaitable[object]],
        restart: Restart,
        log: Path,
        *,
        keeps_input: bool,
    ) -> None:
        self._start, self._clear, self._restart, self._log = start, clear, restart, log
        self._keeps_input = keeps_input
        self._clearing = asyncio.Lock()
        self._is_ending = False
        self._running: asyncio.Task[None] | None = None
        self._command: PipedCommand | None = None
        self._last = bytearray()
        self._written = 0
        self.begun = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The status of its last run, once it is not started again."""
        self.problem = ""
        """Why it could not be started."""

    @property
    def last_output(self) -> str:
        """The end of what it has printed."""
        return bytes(self._last).decode("utf-8", "replace").strip()

    @property
    def is_running(self) -> bool:
        """Whether it has been started and will not stay ended."""
        return self.begun.is_set() and not self.ended.done()

    async def begin(self) -> None:
        """Start it."""
        self._running = asyncio.create_task(self._run(), name="harbor-gym-service")
        await self.begun.wait()

    async def end(self, grace_sec: float) -> None:
        """End it with all processes of the sandbox, which stays.

        Args:
            grace_sec: Seconds from SIGTERM to SIGKILL.
        """
        self._is_ending = True
        async with self._clearing:
            await self._clear(grace_sec)
        await self.stop()

    async def stop(self) -> None:
        """Start it no more and stop reading its output. Idempotent. The sandbox ends its processes."""
        if self._running is not None:
            await cancel_and_wait(self._running)
            self._running = None
        if not self.ended.done():
            self.ended.set_result(137)
        if self._command is not None:
            self._command.kill()
            self._command.drop()
            self._command = None

    async def _run(self) -> None:
        restarts, pause_sec = 0, _FIRST_PAUSE_SEC
        loop = asyncio.get_running_loop()
        status = 137
        try:
            while True:
                begun = loop.time()
                status = await self._run_once()
                async with self._clearing:
                    if not self._is_ending:
                        with contextlib.suppress(SandboxError):
                            await self._clear(0.0)
                if self._is_ending or self.problem or not self._restart.applies(status, restarts):
                    break
                restarts += 1
                pause_sec = _FIRST_PAUSE_SEC if loop.time() - begun > _LASTING_SEC else pause_sec
                await asyncio.sleep(pause_sec)
                pause_sec = min(2 * pause_sec, _LAST_PAUSE_SEC)
        except HarborGymError as exc:  # it can't be started, or its sandbox was stopped
            self.problem = str(exc)
        finally:
            self.begun.set()
            if not self.ended.done():
                self.ended.set_result(status)

    async def _run_once(self) -> int:
        self._command = command = await self._start()
        self.begun.set()
        if not self._keeps_input and command.stdin is not None:
            command.stdin.close()
        assert command.stdout is not None
        with contextlib.ExitStack() as stack:
            file = None
            with contextlib.suppress(OSError):  # the trial's folder may be gone already
                self._log.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self._log.open("ab", buffering=0))
            reading = asyncio.ensure_future(self._read(command.stdout, file))
            try:
                status = await command.wait()
                await reading
            finally:
                await cancel_and_wait(reading)
        self.problem = command.problem
        return status

    async def _read(self, output: asyncio.StreamReader, file: BinaryIO | None) -> None:
        while chunk := await output.read(_READ_BYTES):
            self._last = (self._last + chunk)[-_LAST_BYTES:]
            kept = chunk[: max(0, _MAX_LOG_BYTES - self._written)]
            self._written += len(kept)
            if file is not None and kept:
                with contextlib.suppress(OSError):
                    file.write(kept)
