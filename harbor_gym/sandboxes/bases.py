"""Base images: buildah's own, this machine's Docker's, pulled, or the stand-in that packages alone make."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harbor_gym.cache import locked
from harbor_gym.errors import SandboxStartError
from harbor_gym.owners import temporary_prefix
from harbor_gym.sandboxes import base_image, dockerfile
from harbor_gym.sandboxes.docker_images import copy_from_docker, find_in_docker
from harbor_gym.sandboxes.tools import CONTAINED, run_tool, tail

_logger = logging.getLogger(__name__)

ULIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""Where CAP_SYS_RESOURCE is missing, buildah's own higher limits can't be set and every RUN would fail."""
_PULL_TIMEOUT_SEC = 300.0

_unreachable: set[str] = set()
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Base:
    """An image that is there to build on."""

    reference: str
    """What buildah is to be told."""

    identity: str
    """What goes into the cache key: an image id, or the substitute's own key."""

    substitution: str | None = None


async def resolve_base(reference: str) -> Base:
    """Find a base image: buildah's, Docker's, pulled, or (Debian and Ubuntu only) the offline stand-in.

    Raises:
        SandboxStartError: It is not to be had.
    """
    full = dockerfile.full_reference(reference)
    for _ in range(2):
        for candidate in dict.fromkeys((reference, full)):
            code, output = await run_tool(
                *CONTAINED, "buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", candidate
            )
            if code == 0:
                return Base(candidate, output.strip())
        if (base := await docker_base(reference)) is not None:
            return base
        if full in _unreachable:
            break
        code, why = await run_tool(*CONTAINED, "buildah", "pull", "--quiet", full, timeout_sec=_PULL_TIMEOUT_SEC)
        if code != 0:
            _logger.debug("can't pull %s: %s", full, why.strip())
            _unreachable.add(full)
            break
    if not dockerfile.is_debian_family(full):
        raise SandboxStartError(
            f"base image {reference!r} is neither local to buildah nor can it be pulled, and nothing stands in for it: "
            f"run `buildah pull {full}` where a registry can be reached, or use another sandbox (--env docker)"
        )
    return await _substitute(reference)


async def docker_base(reference: str) -> Base | None:
    """Return Docker's image of this name. A stand-in of ours for an official image is not that image."""
    found = await find_in_docker(reference)
    if found is None:
        return None
    image_id, is_substitute = found
    if is_substitute and dockerfile.is_debian_family(dockerfile.full_reference(reference)):
        return None
    async with locked(f"docker-image-{image_id.removeprefix('sha256:')[:32]}"):
        copied = await copy_from_docker(image_id)
    why = f"{reference} -> Docker's image of that name, which stands on the {base_image.description()}"
    return Base(copied, copied, why if is_substitute else None)


async def _substitute(reference: str) -> Base:
    name = base_image.base_name()
    local = f"localhost/harbor-gym-base:{name}"
    async with locked("base-import"):
        code, _ = await run_tool(*CONTAINED, "buildah", "inspect", "--type", "image", local)
        if code != 0:
            await _import_base(await base_image.ensure_base_tar(), local)
    description = base_image.description()
    substitution = f"{reference} -> {description}"
    if substitution not in _warned:
        _warned.add(substitution)
        _logger.warning("base image %s can't be pulled: SUBSTITUTED by %s", reference, description)
    return Base(local, f"substitute:{name}", substitution)


async def _import_base(tar: Path, reference: str) -> None:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
        recipe = Path(folder) / "Dockerfile"
        lines = ["FROM scratch", f"ADD {tar.name} /", f"ENV PATH={base_image.PATH}", 'CMD ["bash"]', ""]
        recipe.write_text("\n".join(lines))
        code, output = await run_tool(
            *CONTAINED, *dockerfile.owned_build(folder), "--quiet", *ULIMITS,
            "-t", reference, "-f", str(recipe), str(tar.parent),
        )  # fmt: skip
    if code != 0:
        raise SandboxStartError(f"the offline base can't be imported into buildah: {tail(output)}")
