"""Whether a local sandbox's users can have ids of their own on this machine, so that root inside is nobody outside."""

from __future__ import annotations

import functools
import logging

from harbor_gym._runtime.cache import layers_dir
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.sandboxes.local.forkserver_client import run_supervisor_program

ID_COUNT = 1 << 16
"""How many ids a sandbox with a range of its own has: the supervisor's ``kernel/ids.py``."""

_logger = logging.getLogger(__name__)


@functools.cache
def refusal() -> str:
    """Return why sandboxes here share the ids of whoever runs them; empty where each has a range of its own.

    Found by mapping the ids of the cache's own directory once per process; logged once where root can't.
    """
    if is_rootless():
        return "an ordinary user can't map the ids of files on disk"
    output = run_supervisor_program("probe", str(layers_dir())).strip()
    if output:
        _logger.warning(
            "local sandboxes share user ids with this machine, root's among them (%s): each still has a user namespace "
            "of its own, but the kernel's counts by user (inotify, signals) are root's. It needs Linux 5.19 and a "
            "cache directory on ext4, xfs or btrfs (HARBOR_GYM_CACHE)",
            output,
        )
    return output
