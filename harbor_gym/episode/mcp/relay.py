"""A relay: a socket of this machine that connects to an address inside a sandbox."""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import HarborGymError
from harbor_gym.terminal.transports.attach import start_piped
from harbor_gym.terminal.transports.channel import end_piped

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

_CHUNK_BYTES = 1 << 16
_SKIPPED_LINES = 1000
_ACCEPT_ROUNDS = 3
"""Rounds of the event loop in which a new connection is accepted. Where its server closes meanwhile, asyncio forgets
the socket without closing it."""

_MARK = "harbor-gym-relay"
"""The line before what the server sends."""


async def can_relay(environment: "BaseEnvironment", user: str | int | None) -> bool:
    """Return whether a sandbox has bash, which a relay needs; True if that can't be found out."""
    process = await start_piped(environment, "exec bash -c 'echo found'", user=user)
    if process is None or process.stdout is None:
        return True  # the error about pipes is raised elsewhere
    try:
        return await _skip_to(process.stdout, b"found\n")
    finally:
        await end_piped(process)


class Relay:
    """An open relay. Each connection to its socket is a command in the sandbox, with the policy's rights.

    Args:
        environment: The sandbox.
        user: The user whose commands they are; None is the environment's default user.
        host: The host's name or address, as seen in the sandbox.
        port: The port.
    """

    def __init__(self, environment: "BaseEnvironment", user: str | int | None, host: str, port: int) -> None:
        self._environment, self._user = environment, user
        # Bash opens the connection. When this side closes the command's input, the first cat ends and kills the other;
        # when the server closes the connection, the other ends, and with it the command's output, which it alone has.
        opened = f"exec 3<>{shlex.quote(f'/dev/tcp/{host}/{port}')} || exit 1"
        carried = f"{opened}; echo {_MARK}; {{ cat; kill $$; }} <&0 >&3 & exec cat <&3"
        self._command = f"exec bash -c {shlex.quote(carried)}"
        self._directory: Path | None = None
        self._handle = -1
        self.path = ""
        """The socket's path, once open; only this process can use it."""

        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def open(self) -> Self:
        """Listen. The caller closes."""
        self._directory = Path(tempfile.mkdtemp(prefix=temporary_prefix("mcp")))  # other users can't enter it
        self.path = str(self._directory / "socket")
        if sys.platform == "linux":  # a socket's path has 107 bytes at most, and a temporary directory may have more
            self._handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            self.path = f"/proc/self/fd/{self._handle}/socket"
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def close(self) -> None:
        """End every connection. Idempotent."""
        try:
            await shielded(self._end())
        finally:
            self.remove()

    async def _end(self) -> None:
        for _ in range(_ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        for task in self._carrying:
            task.cancel()
        if self._carrying:
            await asyncio.wait(tuple(self._carrying))  # which the end of each leaves

    def remove(self) -> None:
        """Remove the socket, which is all that remains to do after the event loop has ended. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        task.add_done_callback(lambda _: writer.close())  # also if the task is cancelled before it begins

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process = None
        try:
            with contextlib.suppress(HarborGymError):  # the sandbox is gone: the connection ends
                process = await start_piped(self._environment, self._command, user=self._user)
            if process is None or process.stdin is None or process.stdout is None:
                return
            if not await _skip_to(process.stdout, f"{_MARK}\n".encode()):
                return
            pumps = [
                asyncio.ensure_future(_pump(reader, process.stdin)),
                asyncio.ensure_future(_pump(process.stdout, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)
        finally:
            if process is not None:
                await end_piped(process)


async def _skip_to(reader: asyncio.StreamReader, line: bytes) -> bool:
    """Read up to a line, past what the image's shell prints before a command; return whether it came."""
    with contextlib.suppress(ValueError, OSError):  # a line that is too long
        for _ in range(_SKIPPED_LINES):
            if (found := await reader.readline()) in (b"", line):
                return found == line
    return False


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
