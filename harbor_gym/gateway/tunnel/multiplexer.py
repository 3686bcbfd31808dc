"""Many connections over one pair of pipes. This file runs at both ends: imported here, and as a program in a sandbox.

It imports the standard library only and runs on Python 3.8 and later. A frame is a kind (1 byte), a connection's number
and the payload's length (4 bytes each, big-endian), then the payload. The sandbox's end opens connections, numbered
from 1. Either end may send as many bytes of a connection as the other has granted: ``WINDOW`` at first, then as many
more as the other has passed on. So a slow connection neither blocks the others nor fills memory.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import Any, Awaitable, Callable  # noqa: UP035  # Python 3.8 has these

READY, OPEN, DATA, END, RESET, GRANT = range(6)
"""Kinds of frames: the port in the sandbox; a new connection; bytes; end of bytes; abort; a number of bytes granted."""

HEADER = struct.Struct("!BII")
NUMBER = struct.Struct("!I")

MAX_PAYLOAD = 64 * 1024
"""Largest payload, in bytes."""

WINDOW = 256 * 1024
"""How many bytes of a connection may be in flight in one direction."""

MAX_CONNECTIONS = 64
"""How many connections may be open at once."""


class ProtocolError(Exception):
    """The other end violated the protocol."""


class _Connection:
    """One connection's state at this end."""

    def __init__(self) -> None:
        self.credit = WINDOW
        self.granted = asyncio.Event()
        self.granted.set()
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.waiting = 0
        self.has_ended = False
        self.is_reset = False

    def receive(self, payload: bytes) -> None:
        self.waiting += len(payload)
        # The policy can end the sandbox's program and write frames itself: what it may fill here has a limit.
        if self.has_ended or self.waiting > WINDOW:
            raise ProtocolError("more bytes of a connection than were granted")
        self.inbox.put_nowait(payload)

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.inbox.put_nowait(None)

    def reset(self) -> None:
        """Wake both directions, which then raise."""
        self.is_reset = True
        self.granted.set()
        self.inbox.put_nowait(None)

    def grant(self, count: int) -> None:
        self.credit += count
        if self.credit > WINDOW:
            raise ProtocolError("a grant of more bytes than were sent")
        self.granted.set()


class Multiplexer:
    """One end of the pipes.

    Args:
        reader: Reads from the other end.
        writer: Writes to the other end.
        accept: Carries a connection that the other end opened, given its number; None allows none.
        is_ready: Called with the port that the other end listens on.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        accept: Callable[[int], Awaitable[None]] | None = None,
        is_ready: Callable[[int], None] | None = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._accept, self._is_ready = accept, is_ready
        self._lock = asyncio.Lock()  # Python 3.8 lets only one task wait in drain()
        self._connections: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._last = 0

    @property
    def is_full(self) -> bool:
        """Whether no further connection may be opened."""
        return len(self._connections) >= MAX_CONNECTIONS

    async def run(self) -> None:
        """Handle frames until the other end closes its pipe, then abort every connection.

        Raises:
            ProtocolError: The other end violated the protocol.
        """
        try:
            while True:
                try:
                    kind, number, length = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                    if length > MAX_PAYLOAD:
                        raise ProtocolError(f"a frame of {length} bytes")
                    payload = await self._reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                self._handle(kind, number, payload)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send one frame, and wait until there is room for another."""
        async with self._lock:
            self._writer.write(HEADER.pack(kind, number, len(payload)) + payload)
            await self._writer.drain()

    async def open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a connection and carry it to its end."""
        self._last += 1
        number = self._last
        self._connections[number] = _Connection()
        await self.send(OPEN, number)
        await self.carry(number, reader, writer)

    async def carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes between a socket and an open connection, until both directions have ended or one has failed."""
        connection = self._connections.get(number)
        if connection is None:  # reset by the other end meanwhile
            writer.transport.abort()
            return
        pumps = [
            asyncio.ensure_future(self._pump_out(number, connection, reader)),
            asyncio.ensure_future(self._pump_in(number, connection, writer)),
        ]
        try:
            await asyncio.gather(*pumps)
            writer.close()  # only here has each side told the other that its bytes are complete
        except OSError:
            await self.reset(number)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._connections.pop(number, None)
            if not writer.transport.is_closing():
                writer.transport.abort()  # the socket's peer must not take this for a complete answer

    async def reset(self, number: int) -> None:
        """Abort a connection at the other end, unless the other end did so first."""
        if self._connections.pop(number, None) is not None:
            await self.send(RESET, number)

    def own(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        """Run ``work`` until it ends or :meth:`run` does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the pipes broke, and `run` ends too

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle one frame. Never waits, so that no connection can block another."""
        if kind == OPEN and self._accept is not None:
            self._opened(number)
        elif kind == READY and self._is_ready is not None and len(payload) == NUMBER.size:
            self._is_ready(NUMBER.unpack(payload)[0])
        elif kind not in (DATA, END, RESET, GRANT) or not 0 < number <= self._last:
            raise ProtocolError(f"a frame of kind {kind} for connection {number}")
        elif number in self._connections:  # else it was reset here, and the other end does not know yet
            self._passed(kind, number, payload)

    def _opened(self, number: int) -> None:
        if number != self._last + 1 or self.is_full or self._accept is None:
            raise ProtocolError(f"connection {number} can't be opened")
        self._last = number
        self._connections[number] = _Connection()
        self.own(self._accept(number))

    def _passed(self, kind: int, number: int, payload: bytes) -> None:
        connection = self._connections[number]
        if kind == DATA:
            connection.receive(payload)
        elif kind == END:
            connection.end()
        elif kind == GRANT and len(payload) == NUMBER.size:
            connection.grant(NUMBER.unpack(payload)[0])
        elif kind == RESET:
            del self._connections[number]
            connection.reset()
        else:
            raise ProtocolError(f"a malformed frame of kind {kind}")

    async def _pump_out(self, number: int, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while True:
            await connection.granted.wait()
            if connection.is_reset:
                raise ConnectionResetError
            data = await reader.read(min(MAX_PAYLOAD, connection.credit))
            if not data:
                await self.send(END, number)
                return
            # Before the first await: a grant that arrives while this frame is sent counts on top of it.
            connection.credit -= len(data)
            if connection.credit == 0:
                connection.granted.clear()
            await self.send(DATA, number, data)

    async def _pump_in(self, number: int, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await connection.inbox.get()
            if connection.is_reset:
                raise ConnectionResetError
            if data is None:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            # Granted only now, so that a client that reads slowly slows its sender down, and nobody else.
            connection.waiting -= len(data)
            await self.send(GRANT, number, NUMBER.pack(len(data)))


async def serve_sandbox(port: int) -> None:
    """Listen on the sandbox's own loopback and carry every connection over standard input and output."""
    loop = asyncio.get_event_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    multiplexer = Multiplexer(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def connected(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        if multiplexer.is_full:
            client_writer.transport.abort()
            return
        await multiplexer.own(multiplexer.open(client_reader, client_writer))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        listening = server.sockets[0].getsockname()[1]
        await multiplexer.send(READY, 0, NUMBER.pack(listening))
        await multiplexer.run()
    finally:
        server.close()
