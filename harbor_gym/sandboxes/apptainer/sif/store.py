"""The folder of SIF files: one for each image, made once by the first process that needs it, shared by machines.

A file's name is a hash of the image's source, so a machine without a builder finds the files that another one made.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import platform
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from harbor_gym._runtime.cache import building
from harbor_gym._runtime.console.progress import ticking
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym.sandboxes.apptainer.sif import registry
from harbor_gym.sandboxes.apptainer.sif.build import build_sif
from harbor_gym.sandboxes.apptainer.sif.format import SifImage, read_sif
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.build import ImageSource, content_hash, failing_together, hold_image
from harbor_gym.sandboxes.tools import limited

_logger = logging.getLogger(__name__)

_FORMAT = 5
"""Version of the names. A change makes old files unreachable."""
_LOCK_POLL_SEC = 0.1
_KEY_DIGITS = 32
_NAME = "harbor-gym"
"""Name of the images in a registry; their tags are the keys."""


def own_file(source: ImageSource) -> Path | None:
    """Return the task's own SIF file, if its source names one: absolute, or beside the Dockerfile."""
    name = source.docker_image
    if name is None or not name.endswith(".sif") or registry.is_reference(name):
        return None
    return source.environment_dir / Path(name).expanduser()


def sif_key(source: ImageSource) -> str:
    """Return the key in the name of a source's SIF file: a hash of what is built, or of the image's name. Blocks.

    Raises:
        SandboxStartError: An archive that the task names does not exist.
        TaskError: The Dockerfile that a Compose file names does not exist, or can't be read.
    """
    is_pulled = source.docker_image is not None and registry.is_reference(source.docker_image)
    text = f"{_FORMAT} {source.docker_image if is_pulled else content_hash(source)}"
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


@dataclass(frozen=True, slots=True)
class Stored:
    """An existing SIF file."""

    image: SifImage
    is_new: bool = False


def file_name(key: str) -> str:
    """Return the name in the folder of the file with this key, for this machine's architecture."""
    return f"{key}.{platform.machine()}.sif"


def reference_in(registry_path: str, key: str) -> str:
    """Return the name in a registry (``oras://HOST/PATH``) of the file with this key."""
    return f"{registry_path.rstrip('/')}/{_NAME}:{key}-{platform.machine()}"


async def provide_sif(
    source: ImageSource,
    directory: Path,
    *,
    build_timeout_sec: float,
    force: bool = False,
    registry_path: str | None = None,
) -> Stored:
    """Return a task's SIF file, pulled or built if the folder has none. Safe to call from several machines at once.

    Args:
        source: The image's source.
        directory: The folder, made if absent.
        build_timeout_sec: Ceiling on a pull, a build and its packing each, in seconds from its own start. The waits
            for a processor, and for another builder of the file, whose failure is this call's too, are no part of it.
        force: Pull or build anew, in place of an existing file.
        registry_path: Registry to search before building or pulling, as ``oras://HOST/PATH``.

    Raises:
        MissingDependencyError: A program is missing.
        SandboxStartError: The image can't be built or pulled, or the time was up.
    """
    if (own := own_file(source)) is not None:
        return Stored(await asyncio.to_thread(read_sif, own))
    key = await asyncio.to_thread(sif_key, source)
    target = directory / file_name(key)
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    if target.is_file() and not force:
        return Stored(await asyncio.to_thread(read_sif, target))
    asked = time.monotonic()
    async with _locked(target):
        if target.is_file() and not force:  # the lock's last holder has made it
            return Stored(await asyncio.to_thread(read_sif, target))
        named = None if registry_path is None or force else reference_in(registry_path, key)
        with failing_together(str(target), asked), ticking(f"making the SIF file of {source}"):
            await _make(source, target, named, build_timeout_sec, force=force)
    return Stored(await asyncio.to_thread(read_sif, target), is_new=True)


async def _make(source: ImageSource, target: Path, named: str | None, build_timeout_sec: float, *, force: bool) -> None:
    async with limited(build_timeout_sec, lambda: f"pulling the image of {source}"):
        missing = None if named is None else await _pull_if_there(named, target)
        if named is not None and missing is None:
            return
        if source.docker_image is not None and registry.is_reference(source.docker_image):
            await registry.pull(source.docker_image, target)
            return
    try:
        image, held = await hold_image(source, build_timeout_sec=build_timeout_sec, force_build=force)
    except MissingDependencyError as exc:
        if missing is None:
            raise
        raise MissingDependencyError(f"{missing}; and nothing here can build it: {exc}") from exc
    try:
        async with building(), limited(build_timeout_sec, lambda: f"packing the image of {source}"):
            await build_sif(image, target)
    finally:
        held.release()


async def _pull_if_there(reference: str, target: Path) -> SandboxStartError | None:
    """Pull the file that ``sif build --push`` may have stored; return the error if it is not available."""
    try:
        await registry.pull(reference, target)
    except SandboxStartError as exc:
        _logger.warning("the image is made here instead: %s", exc)
        return exc
    return None


@asynccontextmanager
async def _locked(target: Path) -> AsyncGenerator[None]:
    """Hold a file's lock against every machine that shares its folder. Waiting is polled, so it can be cancelled."""
    lock = filelock.FileLock(target.with_name(f"{target.name}.lock"), thread_local=False)
    while True:
        try:
            lock.acquire(blocking=False)
            break
        except filelock.Timeout:
            await asyncio.sleep(_LOCK_POLL_SEC)
    try:
        yield
    finally:
        lock.release()
