"""Test how far a local sandbox with a network reaches this machine. As a program it prints the result as JSON."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import override

from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym._runtime.procfs import descendants, read_stat
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor.network import NETWORK_PROGRAM, own_addresses
from tests.helpers.patience import eventually
from tests.helpers.sandboxes.local import make_sandbox, output, running

PUBLIC = NetworkPolicy(network_mode=NetworkMode.PUBLIC)
DEVICES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort"
_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as connection:
    print(connection.recv(100).decode())
"""
_SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
    speaker.settimeout(60)
    for word in range(3):
        speaker.sendto(b"%d" % word, (sys.argv[1], int(sys.argv[2])))
    print(*sorted(speaker.recv(100).decode() for _ in range(3)))
"""
_SEND_AWAY = """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("198.51.100.1", 9))
"""
_BY_DEVICE = """
import socket, sys, time
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as speaker:
        speaker.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        speaker.settimeout(0.5)
        for word in range(3):
            try:
                speaker.connect((sys.argv[1], int(sys.argv[2])))
                speaker.send(sys.argv[1].encode())
            except OSError as exc:
                print(exc)
time.sleep(0.3)
"""


class Echo(asyncio.DatagramProtocol):
    """Sends back every datagram that comes to its port."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []

    @override
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.heard.append(data)
        self.transport.sendto(data, addr)


@contextlib.asynccontextmanager
async def greeting(family: socket.AddressFamily = socket.AF_INET) -> AsyncGenerator[int]:
    """Greet each client of a port of this machine, on all its addresses of a family; yield the port."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(greet, "0.0.0.0" if family == socket.AF_INET else "::", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def echoing() -> AsyncGenerator[Echo]:
    """Send back every datagram that comes to a port of this machine, on all its addresses."""
    transport, echo = await asyncio.get_running_loop().create_datagram_endpoint(Echo, ("0.0.0.0", 0))
    echo.port = transport.get_extra_info("sockname")[1]
    try:
        yield echo
    finally:
        transport.close()


def own_address() -> str:
    """Return an address of this machine that is not loopback's."""
    return own_addresses()[0].partition("/")[0]


def network_processes() -> list[int]:
    """Return the pids of the network processes that come of this process."""
    found = map(read_stat, descendants(os.getpid()))
    return [stat.pid for stat in found if stat is not None and stat.name == NETWORK_PROGRAM]


async def start_network(sandbox: LocalEnvironment) -> None:
    """Start a sandbox's network by a packet to an address that nobody has."""
    before = set(network_processes())
    await output(sandbox, f"python3 -c '{_SEND_AWAY}'")
    await eventually(lambda: bool(set(network_processes()) - before))


async def connect(sandbox: LocalEnvironment, port: int) -> str:
    """Connect to this machine from inside; return the received bytes."""
    return await output(sandbox, f"python3 -c '{_CONNECT}' {own_address()} {port}")


async def send(sandbox: LocalEnvironment, port: int) -> str:
    """Send three datagrams to this machine from inside; return the answers."""
    return await output(sandbox, f"python3 -c '{_SEND}' {own_address()} {port}")


async def send_by_device(sandbox: LocalEnvironment, address: str, port: int) -> None:
    """Send datagrams, and open a connection, past the routes of the sandbox, by the name of its device."""
    await output(sandbox, f"python3 -c '{_BY_DEVICE}' {address} {port}")


async def reach(directory: Path) -> dict[str, object]:
    """Return what a sandbox that may reach private networks has, and its packets at this machine's loopback.

    Its first packets are datagrams, which nobody sends again.
    """
    made = make_sandbox(directory, network_policy=PUBLIC, private_network=True)
    async with greeting() as greeter, echoing() as echo, running(made) as sandbox:
        before = [await output(sandbox, DEVICES), len(network_processes())]
        heard = [await send(sandbox, echo.port), await connect(sandbox, greeter), await output(sandbox, DEVICES)]
        after = len(network_processes())
        await send_by_device(sandbox, own_address(), echo.port)
        await eventually(lambda: own_address().encode() in echo.heard)
        await send_by_device(sandbox, "127.0.0.1", echo.port)
        return {"before": before, "heard": heard, "after": after, "on loopback": echo.heard.count(b"127.0.0.1")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        json.dump(asyncio.run(reach(Path(folder))), sys.stdout)
