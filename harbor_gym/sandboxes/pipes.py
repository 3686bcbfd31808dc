"""The streams of one command in a sandbox: pipes that the event loop reads and writes without blocking."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

StreamName = Literal["stdout", "stderr"]
Chunk = Callable[[bytes, StreamName], Awaitable[None]]
_CHUNK_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 64 << 20
"""Limit of one command's kept output, per stream; the rest is read and dropped, and the cut is stated."""


@dataclass(slots=True)
class Output:
    """A command's output, up to a limit."""

    kept: bytearray = field(default_factory=bytearray)
    dropped_bytes: int = 0

    def add(self, chunk: bytes) -> None:
        """Keep as much of a chunk as still fits."""
        room = max(0, MAX_OUTPUT_BYTES - len(self.kept))
        self.kept += chunk[:room]
        self.dropped_bytes += max(0, len(chunk) - room)

    def text(self) -> str:
        """Return the output as text; undecodable bytes become U+FFFD, and a cut is stated at the end."""
        text = self.kept.decode("utf-8", "replace")
        return f"{text}\n[{self.dropped_bytes} further bytes dropped]" if self.dropped_bytes else text


class _Pipe:
    """A pipe with one end for a sandbox."""

    def __init__(self) -> None:
        self.near_end = -1
        self.far_end = -1

    def close_far_end(self) -> None:
        """Close the end that the sandbox has got."""
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1

    def take_near_end(self) -> int:
        """Return this side's end, which the caller closes from here on."""
        handle, self.near_end = self.near_end, -1
        return handle

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self.close_far_end()
        self.close_near_end()

    def close_near_end(self) -> None:
        """Close this side's end. Idempotent."""
        if self.near_end >= 0:
            os.close(self.near_end)
            self.near_end = -1


class OutputPipe(_Pipe):
    """One output stream of one command."""

    def __init__(self, name: StreamName, on_chunk: Chunk | None) -> None:
        super().__init__()
        self.name: StreamName = name
        self.output = Output()
        self._on_chunk = on_chunk
        self.near_end, self.far_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.near_end, False)

    async def read_all(self) -> None:
        """Read until every writer has closed its end."""
        while chunk := await self._read():
            self.output.add(chunk)
            if self._on_chunk is not None:
                await self._on_chunk(chunk, self.name)

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self.near_end, _CHUNK_BYTES)
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_reader(self.near_end, _resolve, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(self.near_end)


class InputPipe(_Pipe):
    """The input of one command."""

    def __init__(self) -> None:
        super().__init__()
        self.far_end, self.near_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.near_end, False)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def text_chunks(emit: Callable[[str, StreamName], Awaitable[None]]) -> Chunk:
    """Adapt a callback that takes text to chunks of bytes, which may cut a character in two."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    async def on_chunk(chunk: bytes, stream: StreamName) -> None:
        await emit(decoders[stream].decode(chunk), stream)

    return on_chunk
