"""Downloads from a container, in which no link leads to this machine's own files.

Docker packs an archive; a separate process reads it and sends its members (``archive/reader.py``); a thread of this
process writes them, as for a local sandbox. No archive is ever read in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from harbor_gym._runtime.processes import start_process
from harbor_gym.sandboxes import archive
from harbor_gym.sandboxes.archive.transfers import choice_in, explained, in_thread, receive_dir, receive_file
from harbor_gym.sandboxes.archive.trees.records import ALL, Allowance, Choice, Stream, StreamEndedError
from harbor_gym.sandboxes.errors import SandboxError, SandboxTimeoutError

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); import reader; sys.exit(reader.main())"
_PLACE = Path(archive.__file__).parent
_END_TIMEOUT_SEC = 10.0
"""Seconds that Docker's client may take to end after its output was read or closed."""

_BEGIN_TIMEOUT_SEC = 30.0
"""Seconds until an archive must have begun: a daemon that a container holds up answers nothing about it."""

Receive = Callable[[Stream, Allowance], None]


async def download_file(container: str, source: str, target: Path, *, limit_bytes: int) -> None:
    """Copy a file; a link is followed inside the container. Into ``target`` if that is a directory.

    Raises:
        SandboxError: There is no such file, it is no ordinary file, or it is larger than the limit.
    """
    name = PurePosixPath(source).name
    spec = {"is_file": True, "limit_bytes": limit_bytes, "choice": ALL._asdict(), "source": []}
    with explained(f"download {source}"):
        await _download(
            ("--follow-link", f"{container}:{source}"),
            spec,
            lambda stream, allowance: receive_file(stream, target, name, allowance),
        )


async def download_dir(container: str, source: str, target: Path, *, limit_bytes: int, choice: Choice = ALL) -> None:
    """Copy a directory's contents into ``target``, made if absent; links that lead out of it and devices stay out.

    Raises:
        SandboxError: There is no such directory, it is larger than the limit, or it contains a link by which ``source``
            leads to it.
    """
    names = [os.fsencode(name).decode("latin-1") for name in PurePosixPath(source).parts if name != "/"]
    spec = {
        "is_file": False, "limit_bytes": limit_bytes, "choice": choice_in(source, choice)._asdict(), "source": names,
    }  # fmt: skip
    with explained(f"download {source}"):
        await _download(
            (f"{container}:{source.rstrip('/')}/.",),
            spec,
            lambda stream, allowance: receive_dir(stream, target, allowance),
        )


class _Hangup(Exception):
    """The download was given up."""


async def _download(what: tuple[str, ...], spec: dict[str, Any], receive: Receive) -> None:
    """Receive Docker's archive of a path. It needs no program of the image, nor a running container."""
    near, far = socket.socketpair()
    is_over = False

    def hang_up() -> None:
        nonlocal is_over
        is_over = True
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)

    def check() -> None:
        if is_over:
            raise _Hangup

    processes: list[asyncio.subprocess.Process] = []
    with near:
        try:
            await _start(processes, what, spec, far)
            await _begun(near, what)
            stream = Stream(near.fileno())
            await in_thread(lambda: receive(stream, Allowance(spec["limit_bytes"], check)), hang_up)
            await _finish(processes[0], what)
        except StreamEndedError as exc:
            await _finish(processes[0], what)
            raise SandboxError(f"docker cp {what[-1]} sent no whole archive") from exc
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()


async def _start(
    processes: list[asyncio.subprocess.Process], what: tuple[str, ...], spec: dict[str, Any], far: socket.socket
) -> None:
    """Start Docker's client and the archive's reader, and close their ends here."""
    read, write = os.pipe()
    try:
        with far:
            options: dict[str, Any] = {"stdin": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.PIPE}
            processes.append(await start_process("docker", "cp", *what, "-", stdout=write, **options))
            argv = (sys.executable, "-I", "-S", "-c", _BOOT, str(_PLACE), json.dumps(spec))
            processes.append(await start_process(*argv, stdin=read, stdout=far.fileno()))
    finally:
        os.close(read)
        os.close(write)


async def _begun(near: socket.socket, what: tuple[str, ...]) -> None:
    """Wait until something has arrived, be it the end.

    Raises:
        SandboxTimeoutError: Nothing has in time.
    """
    loop, arrival = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(near, arrival.set)
    try:
        async with asyncio.timeout(_BEGIN_TIMEOUT_SEC):
            await arrival.wait()
    except TimeoutError:
        raise SandboxTimeoutError(f"docker cp {what[-1]} did not begin within {_BEGIN_TIMEOUT_SEC:g} s") from None
    finally:
        loop.remove_reader(near)


async def _finish(client: asyncio.subprocess.Process, what: tuple[str, ...]) -> None:
    """Wait for Docker's client.

    Raises:
        SandboxError: It failed, in its own words, or does not end.
    """
    try:
        async with asyncio.timeout(_END_TIMEOUT_SEC):
            _, output = await client.communicate()
    except TimeoutError:
        raise SandboxError(f"docker cp {what[-1]} does not end") from None
    if client.returncode != 0:
        raise SandboxError(f"docker cp {what[-1]} failed: {output.decode(errors='replace').strip()}")
