"""Harbor's server for tests: `harbor serve` in a process of its own, and a connection to it that can be cut."""

import asyncio
import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.hostile.first_words import own_address
from tests.helpers.loopback import reserved_port
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC, eventually

KEY = "a-key-of-the-tests"


class ServerProcess:
    """`harbor serve` on loopback, or on every address of this machine: sandboxes with a network reach it then."""

    def __init__(self, data_dir: Path, port: int, *, has_relay: bool = True, is_open: bool = False) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        reached_at = f"http://{own_address()}:{self.port}" if is_open else self.url
        self._options = ["--host", "0.0.0.0"] if is_open else []
        self._options += ["--relay-url", reached_at] if has_relay else []
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = Path(sys.executable).parent / "harbor"
        command = [program, "serve", "--port", str(self.port), "--data-dir", self._data_dir, *self._options]
        self._data_dir.mkdir(exist_ok=True)
        with (self._data_dir / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "HARBOR_API_KEY": KEY, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_SEC
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, (self._data_dir / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it; it tidies nothing up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop the server, which stops its trials."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=PATIENCE_SEC)
            finally:
                self.kill()


@contextmanager
def started(data_dir: Path, *, has_relay: bool = True, is_open: bool = False) -> Generator[ServerProcess]:
    """Run a server while this context is open."""
    with reserved_port() as port:
        process = ServerProcess(data_dir, port, has_relay=has_relay, is_open=is_open)
        try:
            process.start()
            yield process
        finally:
            process.stop()


class Cable:
    """A way to a server on loopback. Get one from :func:`cable`."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.cut_after: int | None = None
        """Bytes on their way to the server before which all is well; then every connection breaks, once."""
        self.status: int | None = None
        """The answer of a proxy to every new connection, with a page of its own; None passes the request on."""
        self.refused = set[str]()
        """Requests to the proxy: paths with their queries."""
        self._port, self._writers = port, set[asyncio.StreamWriter]()

    def cut(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on."""
        if self.status is not None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                self.refused.add((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
                head = f"HTTP/1.1 {self.status} Away\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
                writer.write(f"{head}<p>Not now.</p>".encode())
                await writer.drain()
            writer.close()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there[1]}
        self._writers |= ends
        try:
            await asyncio.gather(_pump(reader, there[1], self._count), _pump(there[0], writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    def _count(self, passed: int) -> None:
        if self.cut_after is not None:
            self.cut_after -= passed
            if self.cut_after <= 0:
                self.cut_after = None
                self.cut()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Callable[[int], None] = lambda _: None
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
            passed(len(data))
        writer.write_eof()


@asynccontextmanager
async def served(folder: Path) -> AsyncGenerator[tuple[str, Any]]:
    """Serve a relay of Harbor's; yield its address and itself."""
    harbor, relays, uvicorn = map(importlib.import_module, ("harbor.server.app", "harbor.server.relay", "uvicorn"))
    relay = relays.Relay("http://127.0.0.1/inference")
    app = harbor.create_app(folder, api_key=KEY, relay=relay)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    task = asyncio.create_task(running.serve())
    try:
        await eventually(lambda: running.started)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}", relay
    finally:
        running.should_exit = True
        await task


@asynccontextmanager
async def cable(port: int) -> AsyncGenerator[Cable]:
    """Open a way to a server that listens on a port of loopback."""
    opened = Cable(port)
    server = await asyncio.start_server(opened.carry, "127.0.0.1", 0)
    opened.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield opened
    finally:
        opened.cut()
        server.close()
        await server.wait_closed()
