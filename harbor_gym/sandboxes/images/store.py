"""The images of buildah's store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor_gym._runtime.cache import STORE_LOCK, cache_path, locked_at_once, prune
from harbor_gym._runtime.disks import fullest
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.builder import run_buildah
from harbor_gym.sandboxes.tools import contained, find_program, run_tool, tail

_logger = logging.getLogger(__name__)

_NOT_KNOWN = "image not known"
"""End of buildah's output if its store has no such image. Source: ErrImageUnknown of containers/storage."""

_DOCKER = "application/vnd.docker"
"""Beginning of the media types of Docker's image manifests, version 2."""

_LOGGED = 'time="'
"""Beginning of a line of buildah's log. The first command after a killed build logs each incomplete layer."""


async def store_place() -> str | None:
    """Return the directory of buildah's store; None without buildah, or if it can't tell."""
    if find_program("buildah") is None:
        return None
    code, output = await run_buildah(
        *contained(), "buildah", "info", "--format", "{{.store.GraphRoot}}", environment={}
    )
    return _without_log(output) if code == 0 else None


async def full_disk() -> str:
    """Return for people which of the disks that buildah fills is full, and what frees it."""
    store = await store_place()
    places = [*([Path(store)] if store else []), Path(tempfile.gettempdir()), cache_path()]
    return (
        f"the disk of {fullest(places)} is full: free some space there. `harbor-gym cache prune` removes images that "
        "no sandbox uses, `buildah prune --all` all of buildah's, base images too"
    )


async def measure_store() -> tuple[str, int] | None:
    """Return the directory of buildah's store and its space on disk in bytes; None if either can't be told."""
    if (place := await store_place()) is None:
        return None
    # Where a build removes files meanwhile, du fails and prints the sum of the others all the same.
    _, output = await run_tool(*contained(), "du", "-s", "--block-size=1", place)
    size = output.strip().rpartition("\n")[2].partition("\t")[0]
    return (place, int(size)) if size.isdecimal() else None


async def show_image(reference: str, template: str = "{{.FromImageID}}") -> str | None:
    """Return data of an image in buildah's store, by default its id; None if the store has no such image.

    Args:
        reference: A name or an id.
        template: The data, as buildah's ``--format``.

    Raises:
        SandboxStartError: buildah can't tell.
    """
    argv = (*contained(), "buildah", "inspect", "--type", "image", "--format", template, reference)
    code, output = await run_buildah(*argv, environment={})
    shown = _without_log(output)
    if code == 0:
        return shown
    if shown.endswith(_NOT_KNOWN):
        return None
    raise SandboxStartError(f"buildah can't tell whether its store has the image {reference!r}: {tail(output)}")


async def without_triggers(reference: str) -> str:
    """Return the id of an image like one in buildah's store but without ONBUILD, which buildah would execute at FROM.

    It has the same layers.

    Raises:
        SandboxStartError: buildah can't show or make it.
    """
    code, output = await run_buildah(*contained(), "buildah", "inspect", "--type", "image", reference, environment={})
    if code == 0:
        config = json.loads(json.loads(output[output.index("{") :])["Config"])
        config["config"] = {name: value for name, value in config["config"].items() if name != "OnBuild"}
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("image")) as folder:
            _write_image(Path(folder), config)
            argv = (*contained(), "buildah", "pull", "--quiet", f"dir:{folder}")
            code, output = await run_buildah(*argv, environment={})
    if code != 0:
        raise SandboxStartError(f"buildah can't build on {reference!r}, which has ONBUILD: {tail(output)}")
    return _without_log(output)


def _write_image(folder: Path, config: dict[str, Any]) -> None:
    """Write an image as a directory of Docker's form, with no layer: the store has them by their digests."""
    content = json.dumps(config).encode()
    digest = hashlib.sha256(content).hexdigest()
    names = config["rootfs"].get("diff_ids") or []  # null where the image has no layer
    layers = [{"mediaType": f"{_DOCKER}.image.rootfs.diff.tar", "size": 1, "digest": name} for name in names]
    shown = {"mediaType": f"{_DOCKER}.container.image.v1+json", "size": len(content), "digest": f"sha256:{digest}"}
    manifest = {"schemaVersion": 2, "mediaType": f"{_DOCKER}.distribution.manifest.v2+json", "config": shown}
    (folder / "version").write_text("Directory Transport Version: 1.1\n", encoding="utf-8")
    (folder / digest).write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "layers": layers}), encoding="utf-8")


async def remove_images(identities: Sequence[str]) -> None:
    """Remove images from buildah's store, each with the layers that no other image stands on; base images stay.

    An image that is not there any more, or that a build uses, is passed over.

    Args:
        identities: The images' ids.
    """
    if find_program("buildah") is None:
        return
    for identity in dict.fromkeys(identities):
        await run_buildah(*contained(), "buildah", "rmi", identity, environment={})


async def keep_limit(limit_bytes: int) -> None:
    """Remove the least recently used images that nothing uses while the cache's take more than a limit; bases stay.

    They leave buildah's store, too. It does nothing while a build runs in any process: a build may need each image of
    the store. That build keeps the limit at its end.

    Args:
        limit_bytes: Limit of images, layers and bases.
    """
    with locked_at_once(STORE_LOCK) as is_free:
        if not is_free:
            return
        gone = await asyncio.to_thread(prune, max_bytes=limit_bytes)
        await remove_images([entry.built for entry in gone if entry.built])
    if images := [entry.what for entry in gone if entry.kind == "image"]:
        _logger.info(
            "the cache was above its limit of %.1f GiB: removed %s", limit_bytes / (1 << 30), ", ".join(images)
        )


def _without_log(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not line.startswith(_LOGGED)).strip()
