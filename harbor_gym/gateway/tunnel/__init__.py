"""A tunnel from a sandbox to one session, without a network: connections over a command's pipes."""

import asyncio
import contextlib
import functools
import logging
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.errors import SandboxError, UsageError
from harbor_gym.gateway.server import Gateway
from harbor_gym.gateway.session import Session
from harbor_gym.gateway.tunnel import multiplexer
from harbor_gym.gateway.tunnel.multiplexer import Multiplexer, ProtocolError
from harbor_gym.sandboxes.extensions import PipedProcess
from harbor_gym.terminal.transports.attach import start_piped

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

_START_SEC = 30.0
"""Longest wait until the program in the sandbox listens."""

_END_SEC = 5.0
"""Longest wait for the end of the killed program."""

logger = logging.getLogger(__name__)


class TunnelError(SandboxError):
    """No tunnel could be opened: the sandbox has no python3, the port is taken, or the command got no pipes."""


class Tunnel:
    """An open tunnel. Get one from :func:`tunnel`."""

    def __init__(self, session: Session, address: tuple[str, int], process: PipedProcess) -> None:
        if process.stdin is None or process.stdout is None:
            raise TunnelError("the sandbox started a command without pipes")
        self.base_url = ""
        """The session's URL inside the sandbox, without a trailing slash and ``/v1``; it contains the key."""
        self.error: Exception | None = None
        """Why the tunnel closed early: a protocol error, or the end of its program or of the sandbox."""
        self._session, self._address = session, address
        self._ready = asyncio.Event()
        self._multiplexer = Multiplexer(process.stdout, process.stdin, accept=self._connect, is_ready=self._listening)

    async def run(self) -> None:
        """Carry connections until the program in the sandbox ends or violates the protocol."""
        try:
            await self._multiplexer.run()
            self.error = TunnelError("the tunnel's program in the sandbox ended")
        except ProtocolError as exc:
            self.error = exc
            logger.warning("the tunnel of session %s was closed: %s", self._session.name, exc)
        # Also between two requests: an agent that fails at its next request has lost its policy.
        self._session.mark_undelivered(None, by_client=True)

    async def wait_ready(self) -> None:
        """Wait until the program in the sandbox listens."""
        await self._ready.wait()

    def _listening(self, port: int) -> None:
        if self._ready.is_set() or not 0 < port < 65536:
            raise ProtocolError(f"port {port} reported out of turn")
        self.base_url = f"http://127.0.0.1:{port}/s/{self._session.key}"
        self._ready.set()

    async def _connect(self, number: int) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._address)
        except OSError:
            self._session.mark_undelivered(None)
            await self._multiplexer.reset(number)
            return
        await self._multiplexer.carry(number, reader, writer)


@asynccontextmanager
async def tunnel(
    environment: "BaseEnvironment",
    gateway: Gateway,
    session: Session,
    *,
    port: int = 0,
    user: str | int | None = "root",
) -> AsyncGenerator[Tunnel]:
    """Make one session reachable for programs in a sandbox, on the sandbox's own loopback.

    A program in the sandbox listens there and carries connections over its standard input and output; the sandbox's
    network does not change, and only this session can be reached. The image needs ``python3`` (3.8 or later). The
    program ends with this context, with the sandbox, and with this process.

    Args:
        environment: A started sandbox that runs commands with pipes: ``local``, or Harbor's Docker.
        gateway: The open gateway of the session.
        session: The session to reach.
        port: Port inside the sandbox; 0 takes a free one.
        user: The user that runs the program; not the agent's, if the agent must not be able to kill it.

    Raises:
        TunnelError: The sandbox has no python3, the port is taken, or the command got no pipes.
        SandboxLostError: The sandbox is gone.
        UsageError: Sandboxes of this type start no commands with pipes, or the gateway or the session is closed.
    """
    async with gateway.private_listener(session) as address:
        process = await _start(environment, port, user)
        try:
            opened = Tunnel(session, address, process)
            carrying = asyncio.create_task(opened.run(), name="tunnel")
            try:
                await _until_ready(opened, carrying)
                yield opened
            finally:
                carrying.cancel()
                await asyncio.wait((carrying,))
        finally:
            await _end(process)


async def _until_ready(opened: Tunnel, carrying: asyncio.Task[None]) -> None:
    ready = asyncio.ensure_future(opened.wait_ready())
    try:
        await asyncio.wait((ready, carrying), timeout=_START_SEC, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise TunnelError(
                "the tunnel's program does not listen in the sandbox: its image needs python3 (3.8 or later), and its "
                f"port must be free ({opened.error or f'no answer within {_START_SEC:g} seconds'})"
            )
    finally:
        ready.cancel()


@functools.cache
def _source() -> str:
    return Path(multiplexer.__file__).read_text(encoding="utf-8")


async def _start(environment: "BaseEnvironment", port: int, user: str | int | None) -> PipedProcess:
    program = f"{_source()}\nasyncio.run(serve_sandbox({port:d}))\n"
    # Isolated (-I): neither the image's environment variables nor the agent's files may change its imports.
    command = f"exec python3 -I -c {shlex.quote(program)}"
    if (process := await start_piped(environment, command, user=user)) is not None:
        return process
    raise UsageError(f"{type(environment).__name__} starts no command with pipes, so no tunnel can be opened in it")


async def _end(process: PipedProcess) -> None:
    """Kill the program and wait for its end, at most ``_END_SEC`` seconds."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((ending,), timeout=_END_SEC)
    finally:
        if not ending.done():
            ending.cancel()
