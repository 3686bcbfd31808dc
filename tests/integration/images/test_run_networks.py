"""Each RUN of a build has a network of its own, which leads out, and not to the machine's loopback."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.images.build import Image, ImageSource, build_image
from tests.helpers.hostile.first_words import network_processes, own_address
from tests.helpers.sandboxes.dockerfiles import SERVE
from tests.helpers.tasks import BASE

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("local_engine", "nothing_left")]

_TALK = """\
import socket
import sys
try:
    print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60).recv(9).decode())
except OSError as exc:
    print(type(exc).__name__)
"""


@contextlib.asynccontextmanager
async def answering(answer: str, *, together: int = 1) -> AsyncGenerator[int]:
    """Answer so many connections at once, when all are there, on all addresses of this machine; yield the port."""
    barrier = asyncio.Barrier(together)

    async def reply(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await barrier.wait()
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "0.0.0.0", 0) as server:
        yield server.sockets[0].getsockname()[1]


def write_context(directory: Path, *lines: str) -> None:
    directory.mkdir()
    for name, program in (("serve.py", SERVE), ("talk.py", _TALK)):
        (directory / name).write_text(program)
    (directory / "Dockerfile").write_text("\n".join((f"FROM {BASE}", "COPY *.py /", "ENV PYTHONPATH=/", *lines, "")))


async def built(directory: Path, *lines: str) -> Image:
    write_context(directory, *lines)
    return await build_image(ImageSource(directory), force_build=True)


def read(image: Image, name: str) -> str:
    """Return the text of a file of an image in the layer that has it."""
    return next(layer / name for layer in image.directories if os.path.lexists(layer / name)).read_text()


async def test_a_port_that_one_run_used_is_free_in_the_next(tmp_path: Path) -> None:
    await built(tmp_path / "context", "RUN python3 /serve.py", "RUN python3 /serve.py")


async def test_two_builds_have_one_port_open_at_once(tmp_path: Path) -> None:
    async with answering("both", together=2) as port, asyncio.TaskGroup() as group:
        line = f"RUN python3 -c 'import serve, talk' {own_address()} {port} >/said"
        tasks = [group.create_task(built(tmp_path / name, f"ENV NAME={name}", line)) for name in ("a", "b")]
    assert [read(task.result(), "said") for task in tasks] == ["both\n"] * 2


async def test_a_run_reaches_the_network_and_not_the_machines_loopback(tmp_path: Path) -> None:
    async with answering("hello") as port:
        image = await built(
            tmp_path / "context",
            f"RUN python3 /talk.py {own_address()} {port} >/out; python3 /talk.py 127.0.0.1 {port} >/loopback",
            f"RUN python3 /talk.py {own_address()} {port} >/again; grep nameserver /etc/resolv.conf >/names",
            f"RUN --network=none python3 /talk.py {own_address()} {port} >/none",
        )
    seen = {name: read(image, name).strip() for name in ("out", "loopback", "again", "none", "names")}
    assert seen == {
        "out": "hello",
        "loopback": "ConnectionRefusedError",
        "again": "hello",
        "none": "OSError",
        "names": "nameserver 10.0.2.3",
    }
    assert network_processes() == []


async def test_add_reaches_the_network_and_not_the_machines_loopback(tmp_path: Path) -> None:
    async with answering("HTTP/1.0 200 OK\r\n\r\nadded") as port:
        image = await built(tmp_path / "out", f"ADD http://{own_address()}:{port}/x /x")
        assert read(image, "x") == "added"
        with pytest.raises(SandboxStartError, match="refused"):
            await built(tmp_path / "loopback", f"ADD http://127.0.0.1:{port}/x /x")
