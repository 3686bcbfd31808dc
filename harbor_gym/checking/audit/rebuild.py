"""Build a task's images a second time without the cache, and compare the files."""

from __future__ import annotations

import asyncio
import filecmp
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harbor_gym.checking.audit.kinds import finding
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.sandboxes.images.build import ImageSource, hold_image
from harbor_gym.tasks.receipts import Evidence, Finding

if TYPE_CHECKING:
    from harbor.models.task.task import Task

_SHOWN = 10
_CHANGING = re.compile(
    r"(?:var/log|var/cache|var/lib/apt/lists|run|tmp|var/tmp|root/\.cache|root/\.npm)(?:/|$)|etc/(?:shadow-?|machine-id)$|"
    r".*(?:\.git/|__pycache__/|\.pyc$)"
)
"""Paths in which right images have times, caches and logs."""


class _Entry(NamedTuple):
    """A path of an image."""

    place: Path
    kind: int
    state: tuple[int, int, int, str]
    """Mode, user, group, and the link's target."""

    size: int


async def find_by_rebuild(task_dir: Path, plan: CheckPlan) -> list[Finding]:
    """Return a finding if two builds of a task's images have other files, modes or owners; times do not count.

    The images are that of the policy's sandbox and those of verifiers with a sandbox of their own. The second build
    replaces the first in the cache. Without a Dockerfile that is built, nothing is found.

    Args:
        task_dir: The directory of a well-formed task, whose images could be built.
        plan: How it was checked, in ``local`` sandboxes.

    Raises:
        MissingDependencyError, SandboxStartError: The second build failed, or there is no room for it.
    """
    from harbor_gym.episode.task import load_task

    evidence: list[Evidence] = []
    differ: list[str] = []
    task = await load_task(task_dir)
    for folder, timeout_sec in _built_folders(task, plan):
        found = await _differences(folder, timeout_sec)
        place = folder.relative_to(task.paths.task_dir).as_posix()
        evidence += [Evidence(file=f"{place}/Dockerfile", text=f"/{path}: {why}") for path, why in found[:_SHOWN]]
        if found:
            names = ", ".join(f"/{path}" for path, _ in found[:3])
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            differ.append(f"of {place}/Dockerfile differ in {names}{more}")
    if not differ:
        return []
    return [finding("hygiene/build-differs", f"two builds {', and two '.join(differ)}", evidence[:_SHOWN])]


def _built_folders(task: Task, plan: CheckPlan) -> Iterator[tuple[Path, float]]:
    """Yield the folder of each Dockerfile that a task builds, once, with the limit of its build in seconds."""
    from harbor.environments.definition import should_use_prebuilt_docker_image
    from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

    options, own = plan.environment.kwargs, task.config.environment
    images = [(task.paths.environment_dir, own)]
    for step in [None, *(task.config.steps or ())]:
        definition = resolve_verifier_environment_definition(task.config, task.paths, step)
        if definition is not None:
            images.append((definition.directory, definition.config))
    if options.get("image") or options.get("rootfs"):
        return
    for folder, config in {folder: (folder, config) for folder, config in reversed(images)}.values():
        is_prebuilt = should_use_prebuilt_docker_image(
            folder, docker_image=config.docker_image, force_build=bool(options.get("build_dockerfile"))
        )
        if not is_prebuilt and (folder / "Dockerfile").is_file():
            yield folder, config.build_timeout_sec


async def _differences(folder: Path, timeout_sec: float) -> list[tuple[str, str]]:
    """Return the paths in which two builds of a folder's Dockerfile differ, and how."""
    source = ImageSource(folder)
    first, first_hold = await hold_image(source, build_timeout_sec=timeout_sec)
    try:
        second, second_hold = await hold_image(source, build_timeout_sec=timeout_sec, force_build=True)
        try:
            return await asyncio.to_thread(lambda: list(different_paths(first.directories, second.directories)))
        finally:
            second_hold.release()
    finally:
        first_hold.release()


def different_paths(first: Sequence[Path], second: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield each path of two images that differs, and how, in order. Blocks.

    Args:
        first: Directories of layers, the topmost first.
        second: Those of the other image.
    """
    common = {*first} & {*second}
    one, other = (_merged([layer for layer in layers if layer not in common]) for layers in (first, second))
    for path in sorted({*one, *other}):
        if not _CHANGING.match(path) and (why := _difference(one.get(path), other.get(path))) is not None:
            yield path, why


def _merged(layers: Sequence[Path]) -> dict[str, _Entry]:
    """Return the entries of layers by path, each of the topmost that has it; a deleted file is one, too."""
    found: dict[str, _Entry] = {}
    for layer in layers:
        for folder, folders, names in os.walk(layer):
            for place in (Path(folder, name) for name in (*folders, *names)):
                status = place.lstat()
                target = str(place.readlink()) if place.is_symlink() else ""
                state = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, target
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                found.setdefault(
                    place.relative_to(layer).as_posix(), _Entry(place, stat.S_IFMT(status.st_mode), state, size)
                )
    return found


def _difference(one: _Entry | None, other: _Entry | None) -> str | None:
    if one is None or other is None:
        return "in one of them alone"
    if (one.kind, one.state) != (other.kind, other.state):
        return "another mode, owner or target"
    if one.size != other.size:
        return f"{one.size} and {other.size} bytes"
    try:
        is_same = not stat.S_ISREG(one.kind) or filecmp.cmp(one.place, other.place, shallow=False)
    except PermissionError:  # of another user of the image, where an ordinary user builds
        is_same = True
    return None if is_same else "other content"
