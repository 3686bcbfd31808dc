"""Make the SIF files of many tasks, in parallel, and list them in a manifest.

Existing files are not made again, so an interrupted run can be continued.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import filelock

from harbor_gym._runtime.errors import HarborGymError
from harbor_gym._runtime.files import replace_text
from harbor_gym.sandboxes.apptainer.sif import registry
from harbor_gym.sandboxes.apptainer.sif.format import SifImage
from harbor_gym.sandboxes.apptainer.sif.store import own_file, provide_sif, reference_in, sif_key
from harbor_gym.sandboxes.images.build import ImageSource

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 2
"""Version of the manifest's layout."""


@dataclass(frozen=True, slots=True)
class SifTask:
    """One task whose SIF file is requested."""

    name: str
    source: ImageSource
    build_timeout_sec: float


@dataclass(frozen=True, slots=True)
class SifEntry:
    """One task's line of the manifest."""

    file: str
    """Name in the manifest's folder; a path if the task names a file of its own."""

    key: str
    made_from: str
    """The image's name, or the build context."""

    size_bytes: int
    sha256: str
    pushed: str | None = None
    """Its name in the registry that it was last pushed to."""


@dataclass(frozen=True, slots=True)
class SifResult:
    """The result for one task."""

    task: str
    entry: SifEntry | None
    is_new: bool
    seconds: float
    error: str = ""
    """Why there is no file, or why it could not be pushed."""


async def build_all(
    tasks: Sequence[SifTask],
    directory: Path,
    *,
    concurrency: int = 4,
    force: bool = False,
    push_to: str | None = None,
    on_result: Callable[[SifResult], None] = lambda _: None,
) -> list[SifResult]:
    """Make the SIF file of every task, and push those that were not pushed yet.

    A task's failure does not stop the others. The manifest, beside the files, is written after each task.

    Args:
        tasks: Tasks of the same image share a file.
        directory: The folder, made if absent, which sandboxes take as ``image_cache_dir``.
        concurrency: Number of files made at the same time.
        force: Make all anew.
        push_to: A registry, as ``oras://HOST/PATH``.
        on_result: Called with each result once it is known.

    Returns:
        The results, in the order of the tasks.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    manifest = _Manifest(directory / MANIFEST)
    room = asyncio.Semaphore(concurrency)

    async def make(task: SifTask) -> SifResult:
        async with room:
            result = await _make(task, directory, manifest, force=force, push_to=push_to)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(make(task)) for task in tasks]
    return [item.result() for item in running]


async def _make(task: SifTask, directory: Path, manifest: _Manifest, *, force: bool, push_to: str | None) -> SifResult:
    started = time.monotonic()
    entry: SifEntry | None = None
    is_new = False
    error = ""
    try:
        stored = await provide_sif(
            task.source, directory, build_timeout_sec=task.build_timeout_sec, force=force, registry_path=None
        )
        is_new = stored.is_new
        known = None if is_new else await asyncio.to_thread(manifest.entry, task.name)
        entry = await asyncio.to_thread(_describe, task.source, stored.image, known)
        await asyncio.to_thread(manifest.put, task.name, entry)
        if push_to is not None and own_file(task.source) is None:
            reference = reference_in(push_to, entry.key)
            if is_new or entry.pushed != reference:
                await registry.push(stored.image.path, reference)
                entry = replace(entry, pushed=reference)
                await asyncio.to_thread(manifest.put, task.name, entry)
    except HarborGymError as exc:
        error = str(exc)
    return SifResult(task.name, entry, is_new, time.monotonic() - started, error)


def _describe(source: ImageSource, image: SifImage, known: SifEntry | None) -> SifEntry:
    """Return a file's entry; the known one, with its checksum, if name, key and size are the same. Blocks."""
    own, path = own_file(source), image.path
    name, key = (path.name, sif_key(source)) if own is None else (str(own), "")
    size = path.stat().st_size
    if known is not None and (known.file, known.key, known.size_bytes) == (name, key, size):
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SifEntry(name, key, str(source), size, digest)


class _Manifest:
    """The file that maps tasks to SIF files. Several processes, on several machines, may write it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = filelock.FileLock(path.with_name(f"{path.name}.lock"))  # excludes other threads, too

    def entry(self, task: str) -> SifEntry | None:
        found = self._read().get(task)
        return None if found is None else SifEntry(**found)

    def put(self, task: str, entry: SifEntry) -> None:
        """Replace one task's entry; those of other tasks stay as they are. Blocks."""
        with self._lock:
            images = {**self._read(), task: asdict(entry)}
            document = {"format": MANIFEST_FORMAT, "machine": platform.machine(), "images": images}
            replace_text(self._path, json.dumps(document, indent=2, sort_keys=True))

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the entries by task; none if the file is missing or has another format."""
        try:
            document = cast("dict[str, Any]", json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        return document["images"] if document.get("format") == MANIFEST_FORMAT else {}
