"""Base images: buildah's own, this machine's Docker's, pulled, or the stand-in that packages alone make."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from harbor_gym._runtime.cache import locked
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.images import debian_base, official_images
from harbor_gym.sandboxes.images.builder import ULIMITS
from harbor_gym.sandboxes.images.docker_images import copy_from_docker, find_in_docker
from harbor_gym.sandboxes.images.official_images import OfflineBase
from harbor_gym.sandboxes.images.recipe import ROOT_AT_THE_TOP, StageStart
from harbor_gym.sandboxes.tools import CONTAINED, run_tool, tail

_logger = logging.getLogger(__name__)

_PULL_TIMEOUT_SEC = 300.0
_SHOWN = r"{{.FromImageID}}|{{len .OCIv1.Config.Volumes}}|{{.OCIv1.Config.User}}|{{.OCIv1.Config.WorkingDir}}"

_unreachable: dict[str, str] = {}
"""Image that could not be pulled → why."""
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Base:
    """An image that is there to build on."""

    reference: str
    """The reference that buildah receives."""

    identity: str
    """What goes into the cache key: an image id, or the substitute's own key."""

    substitution: str | None = None
    start: StageStart = ROOT_AT_THE_TOP
    """Its USER and WORKDIR."""

    has_volumes: bool = False


async def resolve_base(reference: str) -> Base:
    """Find a base image: buildah's, Docker's, pulled, or (official ones only) the offline stand-in of its release.

    Raises:
        SandboxStartError: It is not available.
    """
    full = official_images.full_reference(reference)
    for _ in range(2):
        for candidate in dict.fromkeys((reference, full)):
            if (found := await _inspected(candidate)) is not None:
                return found
        if (base := await docker_base(reference)) is not None:
            return base
        if full in _unreachable:
            break
        code, why = await run_tool(*CONTAINED, "buildah", "pull", "--quiet", full, timeout_sec=_PULL_TIMEOUT_SEC)
        if code != 0:
            _logger.debug("can't pull %s: %s", full, why.strip())
            _unreachable[full] = why.strip().rpartition("\n")[2] or f"status {code}"
            break
    try:
        return await _substitute(reference)
    except SandboxStartError as exc:
        why = _unreachable.get(full, "it is gone again")
        raise SandboxStartError(
            f"base image {reference!r} is not in buildah's store or Docker's, pulling it failed ({why}), and {exc}. "
            f"Pull it where a registry can be reached (`buildah pull {full}`), give an image that is here its name "
            f"(`buildah tag IMAGE {full}`; `buildah pull oci-archive:PATH` or docker-archive:PATH brings one), or give "
            "the sandbox option image=oci-archive:PATH in place of the task's own image"
        ) from exc


async def _inspected(reference: str) -> Base | None:
    code, output = await run_tool(*CONTAINED, "buildah", "inspect", "--type", "image", "--format", _SHOWN, reference)
    if code != 0:
        return None
    image_id, volumes, user, workdir = output.strip().split("|", 3)
    return Base(reference, image_id, start=StageStart(user, workdir or "/"), has_volumes=volumes != "0")


async def docker_base(reference: str) -> Base | None:
    """Return Docker's image of this name. A stand-in of ours for an official image is not that image."""
    found = await find_in_docker(reference)
    if found is None:
        return None
    image_id, is_substitute = found
    if is_substitute and official_images.is_official(reference):
        return None
    async with locked(f"docker-image-{image_id.removeprefix('sha256:')[:32]}"):
        copied = await copy_from_docker(image_id)
    why = f"{reference} -> Docker's image of that name, which stands on a harbor-gym offline base"
    base = await _inspected(copied)
    if base is None:
        raise SandboxStartError(f"Docker's image {reference} was copied to buildah, and is gone again")
    return replace(base, substitution=why if is_substitute else None)


async def _substitute(reference: str) -> Base:
    base = official_images.offline_base(reference)
    local = f"localhost/harbor-gym-base:{base.name}"
    async with locked(f"import-{base.name}"):
        code, _ = await run_tool(*CONTAINED, "buildah", "inspect", "--type", "image", local)
        if code != 0:
            await _import_base(base, await debian_base.ensure_base_tar(base), local)
    substitution = f"{reference} -> {base.description}"
    if substitution not in _warned:
        _warned.add(substitution)
        _logger.warning("base image %s can't be pulled: SUBSTITUTED by %s", reference, base.description)
    return Base(local, f"substitute:{base.name}", substitution)


async def _import_base(base: OfflineBase, tar: Path, reference: str) -> None:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
        recipe = Path(folder) / "Dockerfile"
        recipe.write_text("\n".join(["FROM scratch", f"ADD {tar.name} /", *base.instructions, ""]))
        code, output = await run_tool(
            *CONTAINED, *dockerfile.owned_build(folder), "--quiet", *ULIMITS,
            "-t", reference, "-f", str(recipe), str(tar.parent),
        )  # fmt: skip
    if code != 0:
        raise SandboxStartError(f"the offline base can't be imported into buildah: {tail(output)}")
