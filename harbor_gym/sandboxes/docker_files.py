"""Downloads from a container, of which nothing leads to this machine's own files."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from harbor_gym.errors import SandboxError
from harbor_gym.processes import start_process
from harbor_gym.sandboxes import archive

_COPY_TIMEOUT_SEC = 600.0
_CHUNK_BYTES = 1 << 16


async def download_file(container: str, source: str, target: Path, *, limit_bytes: int) -> None:
    """Copy a file; a link is followed inside the container. Into ``target`` if that is a directory.

    Raises:
        SandboxError: There is no such file, it is no ordinary file, or it is larger than the limit.
    """
    with archive.Spool(limit_bytes, f"download {source}") as content:
        await _read(f"{container}:{source}", content, "--follow-link")
        await asyncio.to_thread(_write_only_file, content, target, PurePosixPath(source).name, source)


async def download_dir(container: str, source: str, target: Path, *, limit_bytes: int) -> None:
    """Copy a directory's contents into ``target``, made if absent; links that lead out of it and devices stay out.

    Raises:
        SandboxError: There is no such directory, or it is larger than the limit.
    """
    with archive.Spool(limit_bytes, f"download {source}") as content:
        await _read(f"{container}:{source.rstrip('/')}/.", content)
        await asyncio.to_thread(archive.unpack, content, target, limit_bytes)


def _write_only_file(content: archive.Spool, target: Path, name: str, source: str) -> None:
    with tarfile.open(fileobj=content.reader(), mode="r:") as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isreg() else None
        if file is None:
            raise SandboxError(f"can't download {source}: it is no ordinary file")
        if target.is_dir():
            target = target / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with file, target.open("wb") as written:
            shutil.copyfileobj(file, written)


async def _read(source: str, content: archive.Spool, *options: str) -> None:
    """Have Docker pack what is at ``source``. It needs no program of the image, nor a running container."""
    process = await start_process(
        "docker",
        "cp",
        *options,
        source,
        "-",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_COPY_TIMEOUT_SEC):
            while chunk := await process.stdout.read(_CHUNK_BYTES):
                content.add(chunk)
            _, said = await process.communicate()
    except TimeoutError:
        raise SandboxError(f"docker cp {source} took longer than {_COPY_TIMEOUT_SEC:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    if process.returncode != 0:
        raise SandboxError(f"docker cp {source} failed: {said.decode(errors='replace').strip()}")
