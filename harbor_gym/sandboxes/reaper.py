"""Remove the leftovers of dead processes on this machine, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.owners import TEMPORARY_PREFIX, Owner, is_alive
from harbor_gym._runtime.processes import ask, tool_environment
from harbor_gym._runtime.rootless import build_environment
from harbor_gym.sandboxes.dockerfile import OWNER_OF_BUILD
from harbor_gym.sandboxes.labels import IMAGE_LABEL, OWNER_LABEL, PROJECT_LABEL, removal
from harbor_gym.sandboxes.tools import contained

_LISTING_TIMEOUT_SEC = 20.0
_REMOVAL_TIMEOUT_SEC = 60.0
_FIELDS = f'{{{{.Label "{OWNER_LABEL}"}}}}\t{{{{.Label "{PROJECT_LABEL}"}}}}'
_LISTINGS = {
    "container": ["ps", "--all", "--format", f"{{{{.ID}}}}\t{_FIELDS}"],
    "network": ["network", "ls", "--format", f"{{{{.ID}}}}\t{_FIELDS}"],
    "volume": ["volume", "ls", "--format", f"{{{{.Name}}}}\t{_FIELDS}"],
}
_ATTEMPTS = 3
_PAUSE_SEC = 0.3
_CGROUP_ATTEMPTS = 20
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Leftover:
    """One object that outlived its owner."""

    kind: str
    """``container``, ``network``, ``volume``, ``image``, ``build`` (buildah's container), ``directory``, ``cgroup``."""

    name: str
    """Its id or name in Docker, or its path."""

    owner: str
    """The label of the process that left it; empty for objects that were kept on purpose."""


def find_leftovers() -> list[Leftover]:
    """Return all leftovers of dead owners on this machine, in the order in which they can be removed.

    Objects without an owner's label, and those that may belong to a living process or to another machine, are never
    among them. Blocks for some hundredths of a second, and longer if the Docker daemon is slow to answer.
    """
    return [*_in_docker(), *_builds(), *_directories(), *_cgroups()]


def find_images() -> list[Leftover]:
    """Return the tasks' images that Docker keeps from one start to the next. Docker refuses to remove used ones."""
    if shutil.which("docker") is None:
        return []
    # By name: Docker refuses to remove an image with several names by its id.
    named = _docker("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"label={IMAGE_LABEL}")
    return [Leftover("image", name, "") for name in named if "<none>" not in name]


def remove(leftovers: Iterable[Leftover]) -> list[str]:
    """Remove leftovers; return a line for each that could not be removed."""
    refusals: list[str] = []
    for item in leftovers:
        if (refusal := _remove(item)) is not None:
            refusals.append(f"{item.kind} {item.name}: {refusal}")
    return refusals


def reap_in_background(*, in_docker: bool) -> None:
    """Remove the leftovers of dead owners, in a thread, once per process. Returns at once.

    Args:
        in_docker: Also those in Docker; otherwise only folders and builds, which takes a millisecond.
    """
    done_already = (os.getpid(), in_docker)
    with _lock:
        if done_already in _reaped:
            return
        _reaped.add(done_already)
    threading.Thread(target=_reap_quietly, args=(in_docker,), name="harbor-gym-reaper", daemon=True).start()


_lock = threading.Lock()
_reaped: set[tuple[int, bool]] = set()


def _reap_quietly(in_docker: bool) -> None:
    # No caller waits for this; the sandbox's own start reports errors of the daemon.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if in_docker:
            remove(find_leftovers())
        elif folders := list(_directories()):  # a build leaves one, too
            remove([*_builds(), *folders])


# --- Docker ----------------------------------------------------------------------------------------------------------


def _in_docker() -> Iterator[Leftover]:
    if shutil.which("docker") is None:
        return
    owned = {kind: list(_listed(words, OWNER_LABEL)) for kind, words in _LISTINGS.items()}
    dead = {item.project: item.owner for things in owned.values() for item in things if not is_alive(item.owner)}
    alive = {item.project for things in owned.values() for item in things if is_alive(item.owner)}
    for kind, words in _LISTINGS.items():
        found = {item.name: item.owner for item in owned[kind] if not is_alive(item.owner)}
        # Objects that a task's Compose file includes from others have no label: they are removed with their project.
        for project in sorted(dead.keys() - alive - {""}):
            for item in _listed(words, f"{PROJECT_LABEL}={project}"):
                found.setdefault(item.name, dead[project])
        yield from (Leftover(kind, name, owner) for name, owner in found.items())
    for project in sorted(dead.keys() - alive - {""}):
        label = f"label={PROJECT_LABEL}={project}"
        yield from (Leftover("image", name, dead[project]) for name in _docker("images", "--quiet", "--filter", label))


@dataclass(frozen=True, slots=True)
class _Owned:
    name: str
    owner: str
    project: str


def _listed(words: list[str], label: str) -> Iterator[_Owned]:
    for line in _docker(*words, "--filter", f"label={label}"):
        name, owner, project = line.split("\t")
        if Owner.find(owner) or not owner:
            yield _Owned(name, owner, project)


def _docker(*words: str) -> list[str]:
    """Return the lines that the Docker client prints; none without a daemon."""
    done = ask("docker", *words, timeout_sec=_LISTING_TIMEOUT_SEC)
    return done.stdout.splitlines() if done.returncode == 0 else []


# --- builds ----------------------------------------------------------------------------------------------------------


def _builds() -> Iterator[Leftover]:
    """Find the working containers of killed builds and exports, by their name or mark."""
    if shutil.which("buildah") is None:
        return
    for container, name in _working_containers().items():
        marked = name
        if Owner.find(marked) is None:
            marked = _run_buildah(
                "inspect", "--type", "container", "--format", OWNER_OF_BUILD, container
            ).stdout.strip()
        if _is_dead(marked):
            yield Leftover("build", container, str(Owner.find(marked)))


def _working_containers() -> dict[str, str]:
    listing = _run_buildah("containers", "--format", "{{.ContainerID}} {{.ContainerName}}").stdout.splitlines()
    return {container: name for container, _, name in (line.partition(" ") for line in listing)}


def _remove_build(container: str) -> str | None:
    """Remove a working container; another reaper may be at work on the same one."""
    done = _run_buildah("rm", container)
    return None if done.returncode == 0 or container not in _working_containers() else done.stderr.strip()


def _run_buildah(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"STORAGE_DRIVER": "overlay", **tool_environment(build_environment())}
    return ask(*contained(), "buildah", *words, timeout_sec=_REMOVAL_TIMEOUT_SEC, environment=environment)


# --- files -----------------------------------------------------------------------------------------------------------


def _directories() -> Iterator[Leftover]:
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")):
        with contextlib.suppress(OSError):
            if _is_dead(path.name) and path.lstat().st_uid == os.geteuid():
                yield Leftover("directory", str(path), str(Owner.find(path.name)))


def _cgroups() -> Iterator[Leftover]:
    """Find control groups by the label in their names. Those below one are removed with it."""
    for directory, names, _ in os.walk(_CGROUPS):
        depth = len(Path(directory).relative_to(_CGROUPS).parts)
        if depth >= _CGROUP_DEPTH:
            names.clear()
        for name in names:
            if name.startswith(TEMPORARY_PREFIX) and _is_dead(name):
                yield Leftover("cgroup", str(Path(directory) / name), str(Owner.find(name)))


def _is_dead(name: str) -> bool:
    return (owner := Owner.find(name)) is not None and not is_alive(owner)


def _remove(item: Leftover) -> str | None:
    """Remove one object; return why it still exists, or None if it is gone."""
    try:
        match item.kind:
            case "directory":
                shutil.rmtree(item.name)
            case "cgroup":
                _remove_cgroup(Path(item.name))
            case "build":
                return _remove_build(item.name)
            case kind:
                return _remove_from_docker(removal(kind, item.name))
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as exc:
        return str(exc)
    return None


def _remove_from_docker(words: list[str]) -> str | None:
    """Run a removal until Docker reports that it is done; another reaper may be removing the same object."""
    output = ""
    for _ in range(_ATTEMPTS):
        done = ask("docker", *words, timeout_sec=_REMOVAL_TIMEOUT_SEC)
        output = done.stderr.strip()
        if done.returncode == 0 or "no such" in output.lower() or "not found" in output.lower():
            return None
        time.sleep(_PAUSE_SEC)
    return output


def _remove_cgroup(path: Path) -> None:
    """Remove a control group with those below it, once its processes, which end with their supervisor, are gone."""
    for child in path.iterdir():
        if child.is_dir():
            _remove_cgroup(child)
    for _ in range(_CGROUP_ATTEMPTS):
        try:
            path.rmdir()
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            time.sleep(_PAUSE_SEC)
        else:
            return
    path.rmdir()
