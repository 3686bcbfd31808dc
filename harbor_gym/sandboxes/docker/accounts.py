"""A file in place of a container's accounts that the daemon would wait for.

`docker exec --user` opens it in the daemon, which then answers nothing about the container any more, its removal
included (20.10). `docker cp` does not; but it waits for a FIFO at /etc/group itself, for which there is no remedy here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.processes import start_process
from harbor_gym.sandboxes.docker.engine import docker

_PASSWD, _ROOT = "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"
_HEADER_BYTES, _KIND, _BLOCKING = 512, 156, b"346"
"""Of an archive's first member; where its kind is; those of devices and FIFOs. Source: tar(5)."""
_TIMEOUT_SEC = 5.0

_logger = logging.getLogger(__name__)


async def unblock(container: str) -> bool:
    """Replace a device or FIFO at /etc/passwd, or at the end of a link there, by root's account alone.

    Returns:
        Whether there was one.
    """
    if await _kind(container, _PASSWD) not in _BLOCKING:
        return False
    with tempfile.NamedTemporaryFile("w", prefix=temporary_prefix("accounts"), encoding="utf-8") as file:
        file.write(_ROOT)
        file.flush()
        code, output = await docker("cp", file.name, f"{container}:{_PASSWD}", timeout_sec=_TIMEOUT_SEC)
    _logger.info("the policy put a device or a FIFO at %s: %s", _PASSWD, output.strip() if code else "replaced")
    return code == 0


async def _kind(container: str, path: str) -> bytes:
    """Return the kind of a path in an archive's header; that of a file where there is no answer."""
    process = await start_process(
        *("docker", "cp", "--follow-link", f"{container}:{path}", "-"),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_TIMEOUT_SEC):
            return (await process.stdout.readexactly(_HEADER_BYTES))[_KIND : _KIND + 1]
    except (TimeoutError, asyncio.IncompleteReadError):
        return b"0"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
