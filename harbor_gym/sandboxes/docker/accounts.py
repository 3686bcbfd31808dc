"""Files in place of a container's accounts that the daemon would wait for.

`docker exec --user` opens them in the daemon, which then answers nothing about the container any more, its removal
included (20.10). `docker cp` opens neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.processes import start_process
from harbor_gym.sandboxes.docker.engine import docker

_ACCOUNTS = {"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n"}
_HEADER_BYTES, _KIND, _BLOCKING = 512, 156, b"346"
"""Of an archive's first member; where its kind is; those of devices and FIFOs. Source: tar(5)."""
_TIMEOUT_SEC = 5.0

_logger = logging.getLogger(__name__)


async def unblock(container: str) -> list[str]:
    """Replace each device or FIFO in place of the accounts, or at the end of a link there, by root's account alone.

    Returns:
        The paths of what was replaced.
    """
    done = await asyncio.gather(*(_unblock(container, path, content) for path, content in _ACCOUNTS.items()))
    return [path for path, is_replaced in zip(_ACCOUNTS, done, strict=True) if is_replaced]


async def _unblock(container: str, path: str, content: str) -> bool:
    if await _kind(container, path) not in _BLOCKING:
        return False
    with tempfile.NamedTemporaryFile("w", prefix=temporary_prefix("accounts"), encoding="utf-8") as file:
        file.write(content)
        file.flush()
        code, output = await docker("cp", file.name, f"{container}:{path}", timeout_sec=_TIMEOUT_SEC)
    _logger.info("the policy put a device or a FIFO at %s: %s", path, "replaced" if code == 0 else output.strip())
    return code == 0


async def _kind(container: str, path: str) -> bytes:
    """Return the kind of a path as an archive has it; that of a file where there is no answer."""
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
