"""A command in a sandbox whose standard input and output are streams on this side."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from harbor_gym.sandboxes.pipes import InputPipe, OutputPipe


class PipedCommand:
    """A running command, similar to an ``asyncio.subprocess.Process``; its owner ends it and awaits :meth:`wait`.

    Args:
        kill: Kills the command's process group.
        answered: Done when the command has ended, or its sandbox.
    """

    def __init__(self, kill: Callable[[], None], answered: asyncio.Future[dict[str, Any]]) -> None:
        self._kill = kill
        self._answered = answered
        # Its output can still be read to the end. An owner that was cancelled may never call `wait`.
        answered.add_done_callback(lambda _: self._hang_up())
        self._transports: list[asyncio.BaseTransport] = []
        self._input, self._output = InputPipe(), OutputPipe("stdout", None)
        self._errors = OutputPipe("stderr", None)
        self.problem = ""
        """Why it could not be started, known after its end; empty if it was."""

        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None

    @property
    def far_ends(self) -> tuple[InputPipe, OutputPipe, OutputPipe]:
        """The pipes whose far ends the command gets. Its standard error is discarded."""
        return self._input, self._output, self._errors

    async def connect(self) -> None:
        """Make the streams; the pipes' near ends belong to them from here on."""
        loop = asyncio.get_running_loop()
        self.stdout = asyncio.StreamReader(loop=loop)
        reading = asyncio.StreamReaderProtocol(self.stdout, loop=loop)
        source = os.fdopen(self._output.take_near_end(), "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: reading, source)
        self._transports.append(transport)
        sink = os.fdopen(self._input.take_near_end(), "wb", buffering=0)
        writing = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
        writer, _ = await loop.connect_write_pipe(lambda: writing, sink)
        self._transports.append(writer)
        self.stdin = asyncio.StreamWriter(writer, writing, None, loop)

    def kill(self) -> None:
        """Kill the command and its process group."""
        if not self._answered.done():
            self._kill()

    async def wait(self) -> int:
        """Wait for the command's end and return its status; 137 if its sandbox ended."""
        answer = await asyncio.shield(self._answered)
        self.drop()
        self.problem = answer.get("error", "")
        return answer.get("return_code", 137)

    def _hang_up(self) -> None:
        """Close the input and the error pipe of a command that has ended."""
        if self.stdin is not None:
            self.stdin.close()
        self._errors.close()

    def drop(self) -> None:
        """Release the pipes. Idempotent."""
        for transport in self._transports:
            transport.close()
        for pipe in self.far_ends:
            pipe.close()
