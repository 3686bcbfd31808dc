"""Run an image's ENTRYPOINT without Docker as Harbor's Docker does, with a command of ours as its arguments.

Harbor replaces an image's CMD by a command that keeps the container alive, so CMD never runs; an ENTRYPOINT runs,
starts its services, and ends with ``exec "$@"``. A namespaced sandbox needs no such command: ours ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.piped import PipedCommand

_HANDOVER_TIMEOUT_SEC = 5.0
"""Enough for a service's start. An ENTRYPOINT that never executes its arguments delays each start by this."""
_SETTLE_LIMIT_SEC = 10.0
"""Services that never become idle delay each start by this."""
_ANSWER_SEC = 30.0
_MAX_OUTPUT_BYTES = 64 << 10
_LAST_BYTES = 2000
_READ_BYTES = 1 << 14

_WAIT_FOR_NOBODY = "case $PPID in 0 | 1) ;; *) exec sleep infinity ;; esac"
"""Harbor's own command, but only if a living parent waits for its end (tini, a shell that did not ``exec``).

If the ENTRYPOINT has executed its arguments, the parent is the supervisor, outside of the PID namespace (0), or the
first process (1), and neither needs an idle process, which the policy could take over.
"""

_logger = logging.getLogger(__name__)


class Entrypoint:
    """One sandbox's running ENTRYPOINT. It ends with the sandbox.

    Args:
        argv: The image's ENTRYPOINT.
        log: The file for the first 64 KiB of its output, written after its end.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._nonce = secrets.token_hex(8)
        self.argv = (*argv, "sh", "-c", f"echo {self._nonce}; {_WAIT_FOR_NOBODY}")
        self._log = log
        self._output = bytearray()
        self._reached = asyncio.Event()
        """Set when it has executed its arguments, or has ended."""
        self._hands_over = False
        self._reading: asyncio.Task[None] | None = None
        self._command: PipedCommand | None = None

    async def start(self, run: Callable[[Sequence[str]], Awaitable[PipedCommand]]) -> None:
        """Start it, and return when it has executed its arguments, or after 5 s.

        Args:
            run: Starts a command in the sandbox, with both outputs on its ``stdout``.

        Raises:
            SandboxStartError: It ended without executing its arguments.
        """
        self._command = await run(self.argv)
        self._reading = asyncio.create_task(self._read(self._command), name="harbor-gym-entrypoint")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDOVER_TIMEOUT_SEC):
                await self._reached.wait()
        if self._reading.done() and not self._hands_over:
            status = await self._command.wait()
            printed = bytes(self._output[-_LAST_BYTES:]).decode("utf-8", "replace").strip()
            raise SandboxStartError(
                f"the image's ENTRYPOINT {list(self.argv[:-3])} ended with status {status}: "
                f"{self._command.problem or printed}"
            )
        if not self._reached.is_set():
            _logger.warning(
                "the image's ENTRYPOINT %s has not executed its arguments after %g s: the episode begins beside it",
                list(self.argv[:-3]),
                _HANDOVER_TIMEOUT_SEC,
            )

    async def stop(self) -> None:
        """Wait for its end, stop reading and write the log, after the sandbox was stopped. Idempotent."""
        if self._reading is None or self._command is None:
            return
        await cancel_and_wait(self._reading)
        self._reading = None
        self._command.kill()
        await self._command.wait()
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


@dataclass(frozen=True, slots=True)
class Services:
    """The services that an ENTRYPOINT left running."""

    waited_sec: float
    are_quiet: bool
    """Whether they were idle after that time."""

    @property
    def note(self) -> str:
        """A sentence on the waiting time, for people."""
        end = "" if self.are_quiet else ", and they were still busy"
        return f"the image's entrypoint starts services; waited {self.waited_sec:.1f} s{end}"


class _CleanUp(Protocol):
    async def __call__(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]: ...


async def await_services(clean_up: _CleanUp) -> Services | None:
    """Wait until the services of an ENTRYPOINT are idle, at most 10 s; return None at once if there are none.

    Args:
        clean_up: The ``clean_up`` of a running sandbox.

    Raises:
        SandboxError: The sandbox can't be examined, or is gone.
    """
    limits = {"limit_sec": _SETTLE_LIMIT_SEC}
    answer = await clean_up("wait_until_idle", limits, timeout_sec=_SETTLE_LIMIT_SEC + _ANSWER_SEC)
    if not answer["services"]:
        return None
    services = Services(answer["waited_sec"], answer["are_quiet"])
    _logger.log(logging.INFO if services.are_quiet else logging.WARNING, services.note)
    return services


def _write(log: Path, output: bytes) -> None:
    with contextlib.suppress(OSError):  # the trial's folder may be gone already
        log.write_bytes(output)
