"""The processes, files and memory of this process on its machine at one moment."""

import asyncio
import contextlib
import gc
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.procfs import PROC, descendants
from harbor_gym.sandboxes.supervisor import cgroups
from tests.benchmarks.memory import pss_bytes

_MORE_THAN_ITS_THREADS = 40
_HOLD_SEC = 0.02
_SETTLE_SEC, _SETTLE_PAUSE_SEC = 5.0, 0.1


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counts of the resources that episodes must give back."""

    host_bytes: int
    """Proportional set size of this process."""

    below_bytes: int
    """Of the processes below it."""

    descriptors: int
    threads: int
    processes: int
    """Below this one."""

    mounts: int
    """Of harbor_gym's, visible from here."""

    folders: int
    """Temporary ones of harbor_gym's."""

    descriptors_below: int = 0
    """Of the processes below."""

    networks: int = 0
    """Network namespaces that those are in or have a descriptor of."""

    groups: int = 0
    """Control groups of this process's sandboxes."""

    def exceeds(self, other: "Holdings") -> list[str]:
        """Return the counts that are higher here than in ``other``, a line each, memory aside."""
        names = ("descriptors", "threads", "processes", "mounts", "folders", "descriptors_below", "networks", "groups")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{now} {name}, were {then}" for name, now, then in pairs if now > then]


async def fill_executor() -> None:
    """Start every thread of the loop's executor, which starts them on demand and keeps them."""
    async with asyncio.TaskGroup() as group:
        for _ in range(_MORE_THAN_ITS_THREADS):
            group.create_task(asyncio.to_thread(time.sleep, _HOLD_SEC))


def take_holdings() -> Holdings:
    """Count this process's resources now, after a garbage collection. Blocks for some hundredths of a second."""
    gc.collect()
    own = PROC / "self"
    below = descendants(os.getpid())
    handles = {pid: _links(PROC / str(pid) / "fd") for pid in below}
    networks = {link for pid in below for link in (*_links(PROC / str(pid) / "ns"), *handles[pid])}
    groups = cgroups.group_name().rpartition("-")[0]
    mounts = [line for line in (own / "mounts").read_text().splitlines() if "harbor" in line]
    return Holdings(
        host_bytes=pss_bytes([os.getpid()]),
        below_bytes=pss_bytes(below),
        descriptors=len(list((own / "fd").iterdir())),
        threads=len(list((own / "task").iterdir())),
        processes=len(below),
        mounts=len(mounts),
        folders=len(list(Path(tempfile.gettempdir()).glob("harbor-gym*"))),
        descriptors_below=sum(map(len, handles.values())),
        networks=sum(link.startswith("net:") for link in networks),
        groups=sum(len(list(place.directory.glob(f"{groups}-*"))) for place in cgroups.places().values()),
    )


def take_settled_holdings(before: Holdings) -> Holdings:
    """Count until there is no more than before, for some seconds at most: a network device goes after its sandbox."""
    deadline = time.monotonic() + _SETTLE_SEC
    while (after := take_holdings()).exceeds(before) and time.monotonic() < deadline:
        time.sleep(_SETTLE_PAUSE_SEC)
    return after


def _links(directory: Path) -> list[str]:
    """Return where a process's links lead; none of one that has ended."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            with contextlib.suppress(OSError):
                found.append(str(path.readlink()))
    return found
