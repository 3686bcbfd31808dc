"""Build a SIF file from an image's layers: one squashfs of their merged view, and the image's configuration."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym._runtime.owners import TEMPORARY_PREFIX, is_alive, temporary_prefix
from harbor_gym._runtime.rootless import is_rootless, remove_tree
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.apptainer.programs import find_mksquashfs, find_runtime
from harbor_gym.sandboxes.apptainer.sif.format import CONFIG_NAME, config_document
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.build import Image
from harbor_gym.sandboxes.tools import contained, run_tool, tail

_SQUASH = (
    'set -e; cd "$1"; mount -t overlay overlay -o "$2" merged; shift 2; '
    'exec "$1" merged root.squashfs -comp zstd -Xcompression-level 1 -noId -noappend -quiet -no-progress'
)
"""The mount ends with the tool's namespace. zstd's first level takes a tenth of gzip's time."""
_ARCHITECTURES = {"x86_64": "2", "aarch64": "4"}
"""``uname -m`` → ``apptainer sif add --partarch``."""
_PARTITION = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--groupid", "1")
_GENERIC_JSON = ("--datatype", "6", "--filename", CONFIG_NAME)


async def build_sif(image: Image, target: Path) -> None:
    """Write an image as a SIF file, in place of an existing one. It appears whole or not at all.

    Args:
        image: The image, which the caller holds in the cache.
        target: The file; its folder exists.

    Raises:
        MissingDependencyError: A program is missing, or the machine's architecture is not known.
        SandboxStartError: The layers can't be read, or the disk is full.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise MissingDependencyError(f"SIF files are built on {' and '.join(_ARCHITECTURES)}, not on {machine}")
    runtime, mksquashfs = find_runtime(), find_mksquashfs()
    async with partial_folder(target.parent) as folder:
        await asyncio.to_thread(_prepare, folder, image)
        lowers = ":".join([*(str(number) for number in range(len(image.directories))), "empty"])
        notes = ",userxattr" if is_rootless() else ""
        await _run(*contained(), "sh", "-c", _SQUASH, "sh", str(folder), f"ro,lowerdir={lowers}{notes}", mksquashfs)
        file = folder / "image.sif"
        await _run(runtime, "sif", "new", str(file))
        partition = (*_PARTITION, "--partarch", _ARCHITECTURES[machine])
        await _run(runtime, "sif", "add", *partition, str(file), str(folder / "root.squashfs"))
        await _run(runtime, "sif", "add", *_GENERIC_JSON, str(file), str(folder / CONFIG_NAME))
        await asyncio.to_thread(file.replace, target)


def _prepare(folder: Path, image: Image) -> None:
    """Give the layers short names: the options of mount(2) must fit a page, and an image may have 127 layers."""
    for number, layer in enumerate(image.directories):
        (folder / str(number)).symlink_to(layer)
    for name in ("merged", "empty"):
        (folder / name).mkdir(mode=0o755)
    (folder / CONFIG_NAME).write_text(config_document(image), encoding="utf-8")


async def _run(*argv: str) -> None:
    code, output = await run_tool(*argv)
    if code != 0:
        raise SandboxStartError(f"a SIF file can't be built: {tail(output)}")


@asynccontextmanager
async def partial_folder(directory: Path) -> AsyncGenerator[Path]:
    """Yield a folder in ``directory`` for a partial file; it is removed at the end, or by a later call after a kill."""
    folder = await asyncio.to_thread(_make_folder, directory)
    try:
        yield folder
    finally:
        await shielded(asyncio.to_thread(remove_tree, folder))


def _make_folder(directory: Path) -> Path:
    for left in directory.glob(f".{TEMPORARY_PREFIX}sif-*"):
        if not is_alive(left.name):
            remove_tree(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{temporary_prefix('sif')}", dir=directory))
    os.chmod(folder, 0o755)  # noqa: PTH101  # an ordinary user's namespace enters it as another user
    return folder
