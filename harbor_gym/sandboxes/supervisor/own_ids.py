"""Check whether a local sandbox can have ids of its own on this machine, so that root inside has no rights outside."""

from __future__ import annotations

import functools
import logging

from harbor_gym._runtime.cache import layers_dir
from harbor_gym._runtime.rootless import is_rootless, shared_ids
from harbor_gym.sandboxes.supervisor.forkserver_client import run_supervisor_program
from harbor_gym.sandboxes.supervisor.program.messages import MORE_IDS, ORDINARY_IDS

_logger = logging.getLogger(__name__)


def id_count() -> int:
    """Return how many user and group ids, from 0 on, each local sandbox on this machine has."""
    return shared_ids() if refusal() else ORDINARY_IDS + MORE_IDS


@functools.cache
def refusal() -> str:
    """Return why sandboxes here share the ids of the user that runs them; empty if each has a range of its own.

    Found by mapping the ids of the cache's own directory once per process; logged once if root can't.
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
