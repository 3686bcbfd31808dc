"""The processes of transfers into and out of one sandbox, and the streams to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.archive.transfers import AT_ONCE_BYTES, Receiving, Work, in_thread, in_time
from harbor_gym.sandboxes.archive.trees.records import Stream, is_whole
from harbor_gym.sandboxes.supervisor.forkserver_client import (
    ForkedSupervisor,
    fork_supervisor,
    readable,
)
from harbor_gym.sandboxes.supervisor.program.messages import Target, as_object

_IDLE_SEC = 1.0
"""Seconds that a process waits for another transfer: those of a verdict follow one another quickly."""


class _Cancelled(Exception):
    """The transfer was cancelled."""


class Carriers:
    """The processes that move files for one sandbox. A process is reused if the next transfer follows soon.

    Each does one transfer at a time, of the sandbox's own files or of one view.
    """

    def __init__(self) -> None:
        self._waiting: _Carrier | None = None
        self._running: set[_Transfer] = set()
        self._ends: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def carry(self, target: Target, spec: Mapping[str, Any], work: Work, *handles: int) -> None:
        """Move files between a process that sees the sandbox's files and ``work`` on this machine's side.

        Args:
            target: The sandbox.
            spec: The work of the process.
            work: This machine's side.
            handles: A descriptor of the mount namespace, if that is not the sandbox's own.

        Raises:
            SandboxTimeoutError: It took too long.
            StreamEndedError: The process ended early, or :meth:`hang_up` was called.
            Exception: Any exception of ``work``.
        """
        sees = tuple(os.fstat(handle).st_ino for handle in handles)
        carrier, transfer = self._waiting, _Transfer()
        if carrier is not None and carrier.sees == sees and transfer.ask(carrier, spec):
            self._waiting = None
        else:
            self._end_waiting()
            carrier = _Carrier(sees)
            transfer.ask(carrier, spec)
        self._running.add(transfer)
        is_well = False
        try:
            if not carrier.is_started:
                await shielded(carrier.start(target, *handles))
            await transfer.run(work)
            is_well = True
        finally:
            self._running.discard(transfer)
            transfer.close()
            if is_well:
                self._end_waiting()
                self._waiting = carrier
                self._timer = asyncio.get_running_loop().call_later(_IDLE_SEC, self._end_waiting)
            else:
                carrier.kill()
                await shielded(carrier.wait())

    def _end_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.kill()
            end = asyncio.ensure_future(self._waiting.wait())
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
            self._waiting = None

    def hang_up(self) -> None:
        """Stop the transfers on both sides, and end the idle process. Idempotent."""
        for transfer in self._running:
            transfer.hang_up()
        self._end_waiting()

    async def end(self) -> None:
        """Do :meth:`hang_up`, and wait until the idle processes have ended."""
        self.hang_up()
        if self._ends:
            await asyncio.wait(self._ends)


class _Carrier:
    """One process."""

    def __init__(self, sees: tuple[int, ...]) -> None:
        self.sees = sees
        """The inode of its mount namespace; empty for the sandbox's own."""
        self.control, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: ForkedSupervisor | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    async def start(self, target: Target, *handles: int) -> None:
        """Start it; it does the transfers requested before."""
        config = json.dumps({"transfers": as_object(target)})
        with self._far as far:
            self._process = await fork_supervisor(config, far, *handles)

    def kill(self) -> None:
        """Kill it if it still runs."""
        self.control.close()
        self._far.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait(self) -> None:
        """Wait until it is gone."""
        if self._process is not None:
            await self._process.wait()


class _Transfer:
    """One transfer: a stream to the process on its other side."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._is_over = False

    def ask(self, carrier: _Carrier, spec: Mapping[str, Any]) -> bool:
        """Send a process its end of the stream; return whether that succeeded."""
        try:
            socket.send_fds(carrier.control, [json.dumps(spec).encode()], [self._far.fileno()])
        except OSError:
            return False
        self._far.close()
        return True

    async def run(self, work: Work) -> None:
        """Do this side's work, in a thread unless it is small, until the time is over or the caller is cancelled.

        Raises:
            SandboxTimeoutError: The time is over.
        """
        if isinstance(work, Receiving) and is_whole(content := await self._first_answer(work.first)):
            work(Stream(-1, content), self._check)
            return
        await in_thread(lambda: work(Stream(self._near.fileno()), self._check), self.hang_up)

    async def _first_answer(self, first: bytes) -> bytes:
        """Send the first bytes, and return those that have then arrived, which stay in the stream."""
        with contextlib.suppress(OSError):  # the other side has ended, maybe after its answer
            self._near.sendall(first)
        await in_time(readable(self._near.fileno()))
        try:
            return self._near.recv(AT_ONCE_BYTES, socket.MSG_PEEK)
        except OSError:
            return b""

    def hang_up(self) -> None:
        """Stop both sides. Idempotent."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop both sides and close the stream."""
        self.hang_up()
        self._near.close()
        self._far.close()

    def _check(self) -> None:
        if self._is_over:
            raise _Cancelled
