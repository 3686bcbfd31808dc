"""Layers in the cache: the parts of images, each copied once and shared by all images that have it.

A layer is a directory in overlayfs's own form. The name of an image's layer is the digest of its content from the
image's configuration, so the layers of a base image, or of the common first half of two Dockerfiles, are stored once.
Hard links between whole roots would save as much, but programs notice them: cron and logrotate refuse files with more
than one link.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from harbor_gym._runtime.cache import LAYERS_LOCK, layers_dir, locked
from harbor_gym._runtime.disks import full_cache
from harbor_gym._runtime.owners import is_alive, owner_label, temporary_prefix
from harbor_gym._runtime.rootless import is_rootless, remove_tree
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images import layer_export, sources
from harbor_gym.sandboxes.images.builder import NO_RUN, run_buildah
from harbor_gym.sandboxes.tools import contained, tail

_STAGING = ".partial-"
_MOUNTED = (
    # For an image with ONBUILD, buildah makes the container and then fails to run the instruction.
    'set -e; container=$1; said=$(buildah from --pull-never --name "$1" "$2" 2>&1) || :; '
    'trap \'buildah umount "$container" >/dev/null 2>&1 || :; buildah rm "$container" >/dev/null 2>&1 || :\' EXIT; '
    'root=$(buildah mount "$container") || { echo "$said"; exit 1; }; '
    'shift 2; "$@" "$root"'
)
_LOOK = """
import os, sys
path, root = sys.argv[1:]
os.chroot(root)
while not os.path.isdir(path):
    path = os.path.dirname(path)
print(path)
"""
_PICK = """
import json, sys
from pathlib import Path
from harbor_gym.sandboxes.images.context import pick
folder, wanted, root = sys.argv[1:]
try:
    print(pick(Path(root), Path(folder), **json.loads(wanted)))
except (OSError, ValueError) as exc:
    sys.exit(str(exc))
"""


@contextlib.asynccontextmanager
async def exported(image_id: str, diff_ids: list[str]) -> AsyncGenerator[tuple[list[str], list[int]]]:
    """Copy the layers of an image in buildah's store that the cache lacks.

    Yields all layers' names, the topmost first, and the uids and gids above 65535 of files in the image. The topmost
    layer is the runtime's own, with ``/etc/hosts`` and the like. Write the image's record within the block.

    Args:
        image_id: The image's id in buildah's store.
        diff_ids: The layers' digests in its configuration, the lowest first.

    Raises:
        SandboxStartError: buildah can't mount it, or it can't be copied.
    """
    async with locked(LAYERS_LOCK, shared=True), staging() as folder:
        program = ("-S", layer_export.__file__, str(layers_dir()), str(folder), image_id, json.dumps(diff_ids))
        code, output = await _run_where_mounted(image_id, *program)
        if code != 0:
            why = full_cache(output) or tail(output)
            raise SandboxStartError(f"the root file system of {image_id} can't be exported: {why}")
        shown = json.loads(output.strip().splitlines()[-1])
        yield shown["layers"], shown["high_ids"]


async def directory_of(image_id: str, path: str) -> str:
    """Return the longest beginning of an absolute path that is a directory in an image of buildah's store.

    Raises:
        SandboxStartError: buildah can't mount it.
    """
    code, output = await _run_where_mounted(image_id, "-S", "-c", _LOOK, path)
    if code != 0:
        raise SandboxStartError(f"the image {image_id} can't be mounted: {tail(output)}")
    return output.strip().splitlines()[-1]


async def picked(image_id: str, folder: Path, wanted: Mapping[str, Any]) -> str:
    """Copy files of an image in buildah's store, with other modes, into a new folder.

    Args:
        image_id: The image.
        folder: The folder.
        wanted: The arguments of :func:`harbor_gym.sandboxes.images.context.pick`.

    Returns:
        Its result.

    Raises:
        SandboxStartError: buildah can't mount the image, or it lacks the files.
    """
    code, output = await _run_where_mounted(image_id, "-c", _PICK, str(folder), json.dumps(wanted))
    if code != 0:
        raise SandboxStartError(f"COPY --from with --chmod={wanted['mode']}: {tail(output)}")
    return output.removesuffix("\n").rpartition("\n")[2]


async def _run_where_mounted(image_id: str, *program: str) -> tuple[int, str]:
    """Run a program of Python, which gets the image's root as the last argument."""
    name = f"{temporary_prefix('export')}{uuid.uuid4().hex}"
    argv = ("sh", "-c", _MOUNTED, "sh", name, image_id, sys.executable, "-I", *program)
    return await run_buildah(*contained(), *argv, environment=NO_RUN)


@contextlib.asynccontextmanager
async def imported(rootfs: Path) -> AsyncGenerator[tuple[list[str], list[int]]]:
    """Copy a root file system of the user; yields the same as :func:`exported`.

    Raises:
        SandboxStartError: It is no root file system, or can't be copied.
    """
    async with staging() as folder:
        copied, top = folder / "rootfs", folder / "top"
        copied.mkdir()
        copied.chmod(0o755)
        await sources.copy_rootfs(rootfs, copied)
        try:
            await shielded(asyncio.to_thread(layer_export.write_top, copied, top))
            high_ids = await asyncio.to_thread(high_ids_of, copied)
        except OSError as exc:
            raise SandboxStartError(f"rootfs={str(rootfs)!r} can't be used: {exc}") from exc
        async with added([top, copied]) as names:
            yield names, high_ids


def high_ids_of(directory: Path) -> list[int]:
    """Return the uids and gids above 65535 of files that were copied to a directory.

    An ordinary user's copy has none: its ids on disk are the user's subordinate ids.
    """
    return [] if is_rootless() else layer_export.high_ids(directory)


@contextlib.asynccontextmanager
async def added(directories: list[Path]) -> AsyncGenerator[list[str]]:
    """Move directories into the cache as layers of their own; yields their names. Write the record within the block."""
    async with locked(LAYERS_LOCK, shared=True):
        names = [f"{directory.name}-{uuid.uuid4().hex}" for directory in directories]
        for directory, name in zip(directories, names, strict=True):
            directory.rename(layers_dir() / name)
        yield names


@contextlib.asynccontextmanager
async def staging() -> AsyncGenerator[Path]:
    """Yield a directory beside the layers for partial ones; it is removed at the end with the rest of its contents."""
    folder = layers_dir() / f"{_STAGING}{owner_label()}-{uuid.uuid4().hex}"
    try:
        await shielded(asyncio.to_thread(_make, folder))
        yield folder
    finally:
        await shielded(asyncio.to_thread(remove_tree, folder))


def _make(folder: Path) -> None:
    for leftover in folder.parent.glob(f"{_STAGING}*"):
        if not is_alive(leftover.name):
            remove_tree(leftover)
    folder.mkdir(mode=0o700)
