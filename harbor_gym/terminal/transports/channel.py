"""A process with pipes into the sandbox, for requests and answers."""

import asyncio
import contextlib
from collections.abc import Sequence

from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.extensions import PipedProcess

MAX_SILENCE_SEC = 6.0
"""The other side sends a line every second, so one that is silent for this long hangs. If it is only slow, on a busy
machine, the step takes longer, and nothing is typed twice."""

_CHUNK_BYTES = 65_536
_END_TIMEOUT_SEC = 2.0
"""Seconds that the process may take to end after its input has ended."""


class ChannelBrokenError(Exception):
    """The process ended, or gave no usable answer in time. Internal to this package: a broken channel is replaced."""


async def end_piped(process: PipedProcess) -> None:
    """Close a process's input, kill it if it does not end by that, and wait until it is gone. Idempotent."""
    ending = asyncio.ensure_future(_end(process))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await shielded(ending)
        raise


async def _end(process: PipedProcess) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_TIMEOUT_SEC):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    with contextlib.suppress(OSError):
        await process.stdin.wait_closed()


class Channel:
    """One living process. Made by :meth:`open`; the owner closes it."""

    def __init__(self, process: PipedProcess, max_answer_bytes: int) -> None:
        self._process = process
        self._max_answer_bytes = max_answer_bytes
        self._received = bytearray()
        self.greeting = ""
        """Its output until it was ready."""

    @classmethod
    async def open(
        cls, process: PipedProcess, given: str = "", *, ready: str, max_answer_bytes: int, timeout_sec: float
    ) -> "Channel":
        """Take a process that was just started, write ``given`` to its input, and wait for its line ``ready``.

        Raises:
            ChannelBrokenError: It gave another answer, or none in time; it has been ended.
        """
        channel = cls(process, max_answer_bytes)
        try:
            assert process.stdin is not None
            process.stdin.write(given.encode())
            async with asyncio.timeout(timeout_sec):
                channel.greeting = await channel._read_until(f"{ready}\n", max_silence_sec=timeout_sec)
        except TimeoutError as error:
            await channel.close()
            raise ChannelBrokenError(f"it was not ready within {timeout_sec:g} s") from error
        except BaseException:
            await channel.close()
            raise
        return channel

    async def ask(self, requests: Sequence[str], *, end: str, timeout_sec: float) -> str:
        """Send requests, and return the answer up to its line ``end``.

        Cancelling leaves the channel usable: the next request makes the other side drop this one, and a late answer is
        part of the next one, before its own lines.

        Raises:
            ChannelBrokenError: The process has ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            encoded = [request.encode() for request in requests]
            self._process.stdin.write(b"".join(b"%08d%b" % (len(request), request) for request in encoded))
            async with asyncio.timeout(timeout_sec):
                await self._process.stdin.drain()
                return await self._read_until(f"{end}\n", max_silence_sec=MAX_SILENCE_SEC)
        except TimeoutError as error:
            raise ChannelBrokenError(f"no answer within {timeout_sec:.0f} s") from error
        except OSError as error:
            raise ChannelBrokenError(f"it takes no more requests: {error}") from error

    async def close(self) -> None:
        """End the process and wait until it is gone. Idempotent."""
        await end_piped(self._process)

    async def _read_until(self, end: str, *, max_silence_sec: float) -> str:
        """Return the received text up to the line ``end``.

        Raises:
            ChannelBrokenError: The process has ended, was silent for too long, or answered too much.
        """
        assert self._process.stdout is not None
        wanted, searched = end.encode(), 0
        while (start := self._received.find(wanted, searched)) < 0:
            if len(self._received) > self._max_answer_bytes:
                raise ChannelBrokenError(f"an answer of more than {self._max_answer_bytes} bytes")
            searched = max(0, len(self._received) - len(wanted))
            try:
                async with asyncio.timeout(max_silence_sec):
                    data = await self._process.stdout.read(_CHUNK_BYTES)
            except TimeoutError as error:
                raise ChannelBrokenError(f"no sign of life for {max_silence_sec:.0f} s") from error
            except OSError as error:
                raise ChannelBrokenError(str(error)) from error
            if not data:
                raise ChannelBrokenError(f"it ended after {len(self._received)} bytes of an answer")
            self._received += data
        answer = bytes(self._received[: start + len(wanted)])
        del self._received[: start + len(wanted)]
        return answer.decode(errors="replace")
