"""An image's ENTRYPOINT in a local sandbox: run as Harbor's Docker runs it, with a command of ours for an argument.

Harbor replaces an image's CMD by a command that keeps the container alive, so CMD runs nowhere; an ENTRYPOINT runs,
starts its services, and ends with ``exec "$@"``. A local sandbox lives without that command, which ends at once there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.errors import SandboxStartError

if TYPE_CHECKING:
    from harbor_gym.sandboxes.piped import PipedCommand

_HANDOVER_TIMEOUT_SEC = 5.0
"""Enough for a service's start. An ENTRYPOINT that never executes its arguments costs each start this much."""
_MAX_OUTPUT_BYTES = 64 << 10
_LAST_BYTES = 2000
_READ_BYTES = 1 << 14

_WAIT_FOR_NOBODY = "case $PPID in 0 | 1) ;; *) exec sleep infinity ;; esac"
"""Harbor's own command, but only where a living parent waits for its end (tini, a shell that did not ``exec``).

Where the ENTRYPOINT has executed its arguments, the parent is the supervisor, outside of the PID namespace (0), or the
first process, which waits for nobody (1): a process that does nothing is one more for the policy to take over.
"""

_logger = logging.getLogger(__name__)


class Entrypoint:
    """One sandbox's running ENTRYPOINT. It ends with the sandbox.

    Args:
        argv: The image's words.
        log: Where to write what it printed, when it is over; the first 64 KiB.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._nonce = secrets.token_hex(8)
        self.argv = (*argv, "sh", "-c", f"echo {self._nonce}; {_WAIT_FOR_NOBODY}")
        self._log = log
        self._output = bytearray()
        self._reached = asyncio.Event()
        """Its arguments were executed, or it is over."""
        self._hands_over = False
        self._reading: asyncio.Task[None] | None = None
        self._command: PipedCommand | None = None

    async def start(self, run: Callable[[Sequence[str]], Awaitable[PipedCommand]]) -> None:
        """Start it, and return when it has executed its arguments, or after 5 s.

        Args:
            run: Starts a command in the sandbox, both outputs on its ``stdout``.

        Raises:
            SandboxStartError: It ended before. One that ends with its arguments is well: what it started lives on.
        """
        self._command = await run(self.argv)
        self._reading = asyncio.create_task(self._read(self._command), name="harbor-gym-entrypoint")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDOVER_TIMEOUT_SEC):
                await self._reached.wait()
        if self._reading.done() and not self._hands_over:
            status = await self._command.wait()
            answer = bytes(self._output[-_LAST_BYTES:]).decode("utf-8", "replace").strip()
            raise SandboxStartError(
                f"the image's ENTRYPOINT {list(self.argv[:-3])} ended with status {status}: {answer}"
            )
        if not self._reached.is_set():
            _logger.warning(
                "the image's ENTRYPOINT %s has not executed its arguments after %g s: the episode begins beside it",
                list(self.argv[:-3]),
                _HANDOVER_TIMEOUT_SEC,
            )

    async def stop(self) -> None:
        """Stop reading and write the log, for a sandbox that is over. Idempotent."""
        if self._reading is None:
            return
        await cancel_and_wait(self._reading)
        self._reading = None
        if self._command is not None:
            self._command.drop()
        if self._output:
            await asyncio.to_thread(_write, self._log, bytes(self._output))

    async def _read(self, command: PipedCommand) -> None:
        assert command.stdout is not None
        try:
            while chunk := await command.stdout.read(_READ_BYTES):
                if len(self._output) < _MAX_OUTPUT_BYTES:
                    self._output += chunk[: _MAX_OUTPUT_BYTES - len(self._output)]
                self._note_handover()
        finally:
            self._reached.set()

    def _note_handover(self) -> None:
        marked = f"{self._nonce}\n".encode()
        if not self._reached.is_set() and marked in self._output:
            self._output = self._output.replace(marked, b"")
            self._hands_over = True
            self._reached.set()


def _write(log: Path, output: bytes) -> None:
    with contextlib.suppress(OSError):  # the trial's folder may be gone already
        log.write_bytes(output)
