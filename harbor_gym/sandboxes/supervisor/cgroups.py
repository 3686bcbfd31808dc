"""The directories of sandboxes' control groups on this machine, and the removal of dead owners' groups."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harbor_gym._runtime.owners import is_alive, owner_label
from harbor_gym.sandboxes.supervisor.program.messages import CgroupLimits

CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "harbor-gym-"
_NEEDED_FILES = {
    ("memory", 1): ("memory.limit_in_bytes", "memory.oom_control", "cgroup.event_control"),
    ("memory", 2): ("memory.max", "memory.high", "memory.events"),
    ("pids", 1): ("pids.max",),
    ("pids", 2): ("pids.max",),
    ("cpu", 1): ("cpu.cfs_quota_us",),
    ("cpu", 2): ("cpu.max",),
}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the cgroup file system in which groups with one controller can be made."""

    version: Literal[1, 2]
    directory: Path


@functools.cache
def places() -> Mapping[str, Place]:
    """Return a place for each of :data:`CONTROLLERS` with which this process can make groups, found by making one.

    Groups are made beside or below this process's own, so that limits of its container still apply.
    """
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return {name: place for name in CONTROLLERS if (place := first_usable(name, mounts, own, _is_usable)) is not None}


def group_name() -> str:
    """Return a name for one sandbox's groups that states their owner."""
    return f"{_PREFIX}{owner_label()}-{next(_numbers)}"


def remove_groups(names: Iterable[str] | None = None) -> bool:
    """Remove groups by name; without names, those of dead owners. Groups that still have processes stay.

    Returns:
        Whether all were removed.
    """
    is_done = True
    for place in places().values():
        found = place.directory.glob(f"{_PREFIX}*") if names is None else map(place.directory.joinpath, names)
        for directory in found:
            if names is None and is_alive(directory.name):
                continue
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                is_done = False
    return is_done


def memory_kills(version: int, directory: Path) -> int | None:
    """Return the number of processes of a group that the kernel killed for lack of memory; None if it is gone."""
    try:
        text = (directory / ("memory.events" if version == 2 else "memory.oom_control")).read_text(encoding="utf-8")
    except OSError:
        return None
    counts = dict(line.split() for line in text.splitlines())
    return int(counts["oom_kill"]) if "oom_kill" in counts else None


@functools.cache
def remove_abandoned_groups() -> None:
    """Remove the groups of dead owners, once per process."""
    remove_groups()


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted hierarchy of control groups."""

    version: Literal[1, 2]
    controllers: frozenset[str]
    root: str
    point: Path


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Return the hierarchies in ``/proc/self/mountinfo``'s text, version 1 first: its controllers are not in 2."""
    found: list[Mount] = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, point = fields.split()[3:5]
        if kind == "cgroup":
            found.append(Mount(1, frozenset(options.split(",")), root, Path(point)))
        elif kind == "cgroup2":
            found.append(Mount(2, frozenset(CONTROLLERS), root, Path(point)))
    return sorted(found, key=lambda mount: mount.version)


def first_usable(
    controller: str, mounts: list[Mount], own: str, is_usable: Callable[[str, Literal[1, 2], Path], bool]
) -> Place | None:
    """Return the first place for a controller, given this process's own groups (``/proc/self/cgroup``)."""
    for mount in mounts:
        if controller not in mount.controllers:
            continue
        directory = _own_directory(mount, controller, own)
        # In version 2 a group has either processes or subgroups with limits: if ours has processes, use one above.
        above = [directory, *directory.parents] if mount.version == 2 else [directory]
        for candidate in above:
            if candidate.is_relative_to(mount.point) and is_usable(controller, mount.version, candidate):
                return Place(mount.version, candidate)
    return None


def _own_directory(mount: Mount, controller: str, own: str) -> Path:
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        if names == "" if mount.version == 2 else controller in names.split(","):
            inner = os.path.relpath(path, mount.root)
            if not inner.startswith("..") and (directory := mount.point / inner).is_dir():
                return directory
    return mount.point


def _is_usable(controller: str, version: Literal[1, 2], directory: Path) -> bool:
    probe = directory / f"{_PREFIX}{owner_label()}-probe-{controller}"
    try:
        if version == 2:
            enabled = (directory / "cgroup.subtree_control").read_text(encoding="utf-8").split()
            if controller not in enabled:
                (directory / "cgroup.subtree_control").write_text(f"+{controller}", encoding="utf-8")
        probe.mkdir()
    except OSError:
        return False
    try:
        return all((probe / name).exists() for name in _NEEDED_FILES[controller, version])
    finally:
        probe.rmdir()


def groups_for(name: str, limits: CgroupLimits) -> dict[str, tuple[int, str]]:
    """Return the groups of a sandbox: controller → version and directory."""
    wanted = {"memory": limits.memory_bytes, "cpu": limits.cpus, "pids": limits.max_processes}
    return {
        controller: (place.version, str(place.directory / name))
        for controller, place in places().items()
        if wanted[controller] is not None
    }
