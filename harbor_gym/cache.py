"""Where built things are kept between runs, and how processes share them."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator
from pathlib import Path

_LOCK_POLL_SEC = 0.05


def cache_dir() -> Path:
    """Return the cache directory, made if absent: $HARBOR_GYM_CACHE, $XDG_CACHE_HOME/harbor_gym or ~/.cache/harbor_gym.

    Everything in it can be deleted at any time when nothing runs.
    """
    named = os.environ.get("HARBOR_GYM_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    path = Path(named) if named else (Path(shared) if shared else Path.home() / ".cache") / "harbor_gym"
    path = path.expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.asynccontextmanager
async def locked(name: str) -> AsyncGenerator[None]:
    """Hold the cache's lock ``name`` against every task and process that shares the cache directory.

    The lock goes with its holder, even one that is killed. Waiting is polled, so it can be cancelled.
    """
    path = cache_dir() / "locks" / f"{name}.lock"
    path.parent.mkdir(exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_SEC)
        yield
    finally:
        os.close(handle)
