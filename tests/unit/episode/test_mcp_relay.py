"""A relay to an MCP server removes its socket, also if its close is cancelled."""

import asyncio
import contextlib
import gc
import os
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym.episode.mcp import relay as relays


def _entries(directory: Path) -> list[str]:
    return os.listdir(directory)  # noqa: PTH208


async def test_a_cancelled_close_removes_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def start_piped(*_: object, **__: object) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await may_end.wait()

    monkeypatch.setattr(relays, "start_piped", start_piped)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    relay = await relays.Relay(cast("Any", None), None, "localhost", 80).open()
    assert len(_entries(tmp_path)) == 1
    _, writer = await asyncio.open_unix_connection(relay.path)
    await begun.wait()
    closing = asyncio.ensure_future(relay.close())
    await asyncio.sleep(0)
    closing.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    writer.close()
    assert _entries(tmp_path) == []


async def test_a_connection_that_is_being_accepted_leaves_no_socket() -> None:
    """A socket that is left open is a warning when it is collected, which fails the test."""
    relay = await relays.Relay(cast("Any", OnThisMachine()), None, "127.0.0.1", 9).open()
    _, writer = await asyncio.open_unix_connection(relay.path)
    await relay.close()
    writer.close()
    gc.collect()


async def test_a_connection_may_end_while_the_relay_closes() -> None:
    """It has ended, and what follows its end has not: the relay still counts it."""
    relay = relays.Relay(cast("Any", None), None, "localhost", 80)
    connection = asyncio.ensure_future(asyncio.sleep(0))

    async def close() -> None:
        await connection
        await relay.close()

    closing = asyncio.ensure_future(close())
    await asyncio.sleep(0)
    relay._carrying.add(connection)  # pyright: ignore[reportPrivateUsage]
    connection.add_done_callback(relay._carrying.discard)  # pyright: ignore[reportPrivateUsage]
    await closing


class OnThisMachine:
    """The ability of a sandbox that a relay needs."""

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        return ["bash", "-c", command]


async def test_the_end_of_the_servers_connection_is_passed_on() -> None:
    """Servers close connections that are idle; the next request would wait on one for its whole time."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(3))
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        relay = await relays.Relay(cast("Any", OnThisMachine()), None, "127.0.0.1", port).open()
        reader, writer = await asyncio.open_unix_connection(relay.path)
        writer.write(b"abc")
        async with asyncio.timeout(60):
            assert await reader.read() == b"abc"
        writer.close()
        await relay.close()


async def test_what_the_images_shell_prints_is_no_part_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "noise").write_text("echo noise; echo found no more\n", encoding="utf-8")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "noise"))
    assert await relays.can_relay(cast("Any", OnThisMachine()), None)

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        relay = await relays.Relay(cast("Any", OnThisMachine()), None, "127.0.0.1", port).open()
        reader, writer = await asyncio.open_unix_connection(relay.path)
        async with asyncio.timeout(60):
            assert await reader.read() == b"hello"
        writer.close()
        await relay.close()
