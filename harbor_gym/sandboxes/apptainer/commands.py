"""Run one command in a container, to its end or with streams to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from harbor_gym._runtime.processes import start_process
from harbor_gym._runtime.shielded import cancel_and_wait, shielded
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.errors import SandboxLostError, SandboxTimeoutError
from harbor_gym.sandboxes.apptainer.container import Container
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.pipes import Chunk, OutputPipe
from harbor_gym.sandboxes.supervisor.forkserver_client import supervisor_argv, supervisor_environment
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec
from harbor_gym.sandboxes.supervisor.running import Finished

_DRAIN_SEC = 0.1
"""Seconds after a command's end in which processes that it left (``> >(tee log)``) may still write output."""
_GONE = 125
"""The entering program's exit status if the sandbox is gone."""


async def run_command(
    container: Container, request: CommandSpec, *, timeout_sec: float | None, on_chunk: Chunk | None
) -> Finished:
    """Run a command and wait for its exit, not for the end of its output. Its standard input is empty.

    A command that is cancelled or out of time is killed, with its process group, before this returns.

    Args:
        container: The container.
        request: The command.
        timeout_sec: None is no limit.
        on_chunk: Called with output as it arrives.

    Raises:
        SandboxTimeoutError: The time was up.
        SandboxLostError: The container is gone.
        ValueError: There is a NUL in the command.
    """
    if "\0" in request.command:
        raise ValueError("a command can't have a NUL in it")
    pipes = [OutputPipe("stdout", on_chunk), OutputPipe("stderr", on_chunk)]
    process: asyncio.subprocess.Process | None = None
    try:
        process = await _start(container, request, asyncio.subprocess.DEVNULL, pipes)
        code = await _finish(process, pipes, timeout_sec)
    finally:
        if process is not None and process.returncode is None:
            await shielded(_kill(process))
        for pipe in pipes:
            pipe.close()
    if code == _GONE and not container.is_running:
        raise SandboxLostError("the apptainer sandbox went away while it ran a command")
    return Finished(code, pipes[0].output, pipes[1].output)


async def open_command(container: Container, request: CommandSpec) -> PipedCommand:
    """Start a command and return while it runs; the caller talks to it through its streams, and ends it.

    Raises:
        SandboxLostError: The container is gone.
    """
    starting: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
    ended = asyncio.create_task(_answer(starting), name="harbor-gym-apptainer-command")
    command = PipedCommand(lambda: _kill_group(starting.result()), ended)
    source, output, errors = command.far_ends
    try:
        await command.connect()
        # The entering program's message about a command that it can't start is output, too.
        pipes = [output, output if request.joins_outputs else errors]
        starting.set_result(await _start(container, request, source.far_end, pipes))
    except BaseException:
        await cancel_and_wait(ended)
        command.drop()
        raise
    source.close_far_end()
    return command


async def _answer(starting: asyncio.Future[asyncio.subprocess.Process]) -> dict[str, Any]:
    return {"return_code": _return_code(await (await starting).wait())}


async def _start(
    container: Container, request: CommandSpec, source: int, pipes: list[OutputPipe]
) -> asyncio.subprocess.Process:
    spec = os.memfd_create("spec")
    try:
        text = memoryview(container.enter_request(request))
        while text:
            text = text[os.write(spec, text) :]
        return await start_process(
            *supervisor_argv("enter-by", *map(str, (spec, *container.view_handles))),
            stdin=source,
            stdout=pipes[0].far_end,
            stderr=pipes[1].far_end,
            pass_fds=[spec, *container.view_handles],
            env=supervisor_environment(),
            start_new_session=True,
        )
    finally:
        os.close(spec)
        for pipe in pipes:
            pipe.close_far_end()


async def _finish(process: asyncio.subprocess.Process, pipes: list[OutputPipe], timeout_sec: float | None) -> int:
    async with task_group() as group:
        readers = [group.create_task(pipe.read_all()) for pipe in pipes]
        try:
            async with asyncio.timeout(timeout_sec):
                code = await process.wait()
        except TimeoutError:
            await _kill(process)
            raise SandboxTimeoutError(f"command timed out after {timeout_sec:g} seconds and was killed") from None
        _, late = await asyncio.wait(readers, timeout=_DRAIN_SEC)
        for unfinished in late:
            unfinished.cancel()
    return _return_code(code)


def _return_code(status: int) -> int:
    return status if status >= 0 else 128 - status


async def _kill(process: asyncio.subprocess.Process) -> None:
    _kill_group(process)
    await process.wait()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the command's process group, to which the entering program belongs, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
