"""The process of one transfer into or out of a local sandbox, and the stream to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.sandboxes.archive.transfers import Work, in_thread
from harbor_gym.sandboxes.archive.trees.records import Stream
from harbor_gym.sandboxes.supervisor.forkserver_client import (
    ForkedSupervisor,
    fork_supervisor,
    supervisor_argv,
    supervisor_environment,
)
from harbor_gym.sandboxes.supervisor.program.messages import Target, as_object


class _Cancelled(Exception):
    """The transfer was given up."""


class Carrier:
    """The process of one transfer, and this side's end of the stream to it."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._process: ForkedSupervisor | asyncio.subprocess.Process | None = None
        self._is_over = False

    async def start(self, target: Target, spec: Mapping[str, Any], *handles: int) -> None:
        """Start the process.

        Args:
            target: The sandbox.
            spec: What the process does there.
            handles: A descriptor of the mount namespace to do it in, where that is not the sandbox's own.
        """
        config = json.dumps({"transfer": {"target": as_object(target), "spec": spec}})
        with self._far as far:
            if not is_rootless():
                self._process = await fork_supervisor(config, far, *handles)
                return
            self._process = await start_process(
                *supervisor_argv("transfer", config, *map(str, (far.fileno(), *handles))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[far.fileno(), *handles],
                env=supervisor_environment(),
                start_new_session=True,
            )

    async def run(self, work: Work) -> None:
        """Do this side's work in a thread; give it up where the time is over or the caller is cancelled.

        Raises:
            SandboxTimeoutError: The time is over.
        """
        await in_thread(lambda: work(Stream(self._near.fileno()), self._check), self.hang_up)

    def hang_up(self) -> None:
        """Stop both sides. Idempotent."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)

    async def end(self) -> None:
        """Kill the process if it still runs, and wait until it is gone."""
        self.hang_up()
        self._near.close()
        self._far.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _check(self) -> None:
        if self._is_over:
            raise _Cancelled
