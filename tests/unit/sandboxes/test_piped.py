"""Streams of commands after a cancellation of their owners: nothing stays open."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.supervisor.client import SupervisedSandbox


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_command_that_nobody_waits_for_leaves_no_pipe() -> None:
    before = open_files()
    answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    command = PipedCommand(lambda: None, answered)
    await command.connect()
    for pipe in command.far_ends:
        pipe.close_far_end()  # the sandbox has them, and is gone
    answered.set_result({"lost": True})
    await settle()
    assert open_files() <= before, "an earlier test's may be closed meanwhile"
    assert command.stdout is not None
    assert await command.stdout.read() == b""


async def test_what_a_command_printed_before_its_end_stays_to_be_read() -> None:
    answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    command = PipedCommand(lambda: None, answered)
    await command.connect()
    _, output, _ = command.far_ends
    os.write(output.far_end, b"last words")
    answered.set_result({"return_code": 0})
    for pipe in command.far_ends:
        pipe.close_far_end()
    assert command.stdout is not None
    assert await command.stdout.read() == b"last words"
    assert await command.wait() == 0


async def test_the_answer_to_a_cancelled_start_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    sandbox = SupervisedSandbox()
    far_end: socket.socket = sandbox._far_end  # pyright: ignore[reportPrivateUsage]
    asyncio.get_running_loop().add_reader(
        sandbox._control.fileno(),  # pyright: ignore[reportPrivateUsage]
        sandbox._receive,  # pyright: ignore[reportPrivateUsage]
    )
    sandbox._ready.cancel()  # pyright: ignore[reportPrivateUsage]  # as a cancelled start does
    far_end.send(json.dumps({"init": 1, "start_time": 2, "ids": []}).encode())
    await settle()
    assert caplog.records == []
    await sandbox.stop()
