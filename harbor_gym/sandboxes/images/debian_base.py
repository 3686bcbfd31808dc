"""The base images of ``harbor-gym base``: made only of packages, for machines that reach a mirror but no registry."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym._runtime.disks import reports_full_disk
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import MissingDependencyError, SandboxStartError
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.images.apt_mirrors import apt_mirrors
from harbor_gym.sandboxes.images.builder import ulimits
from harbor_gym.sandboxes.images.docker_images import MADE_LABEL
from harbor_gym.sandboxes.images.official_images import DEFAULT, EXCLUDED, MADE, OfflineBase, base_name, offline_base
from harbor_gym.sandboxes.images.store import full_disk, show_image
from harbor_gym.sandboxes.tools import contained, run_tool, tail, tied

_BUILD_TIMEOUT_SEC = 600.0
_CONNECT_TIMEOUT_SEC = 20
_TAIL_LINES = 15
_END_OF_TAR = 1024


async def ensure_base_tar(base: OfflineBase = DEFAULT) -> Path:
    """Return a base's root file system as a tar, made if the cache does not have it (about 20 s).

    Packages come from the mirror in ``HARBOR_GYM_DEBIAN_MIRROR`` or ``HARBOR_GYM_UBUNTU_MIRROR``, else from one in the
    machine's own apt sources, else from the distribution's own.

    Raises:
        MissingDependencyError: mmdebstrap is not installed.
        SandboxStartError: The packages' signatures can't be checked, or the mirror does not deliver.
    """
    path = cache_dir() / "bases" / f"{base.name}.tar"
    if is_whole_tar(path):
        return path
    async with locked(f"base-{path.stem}"):
        if not is_whole_tar(path):
            path.parent.mkdir(exist_ok=True)
            await _make_tar(base, path)
    return path


def is_whole_tar(path: Path) -> bool:
    """Return whether a file is a complete tar archive, which ends with two blocks of zeros."""
    try:
        with path.open("rb") as file:
            is_tar = tarfile.is_tarfile(file)
            file.seek(-_END_OF_TAR, os.SEEK_END)
            return is_tar and not any(file.read())
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError as exc:
        if exc.errno == errno.EINVAL:  # it is shorter
            return False
        raise


async def _make_tar(base: OfflineBase, path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise MissingDependencyError("the offline base image needs mmdebstrap: apt-get install mmdebstrap")
    release = base.release
    mirror = release.distribution.mirror(release.suite, await asyncio.to_thread(apt_mirrors))
    signed = f"[signed-by={mirror.signed_by}] " if mirror.signed_by else ""
    partial = path.with_name(f".{path.name}.partial")  # overwrites the file of a killed process
    # For an ordinary user it makes a user namespace of its own, without device files.
    prefix = tied() if rootless.is_rootless() else contained()
    argv = [
        *prefix,
        "mmdebstrap",
        "--mode=unshare" if rootless.is_rootless() else "--mode=root",
        "--variant=minbase",
        "--format=tar",
        f'--aptopt=Acquire::http::Timeout "{_CONNECT_TIMEOUT_SEC}"',
        f"--include={','.join(base.packages)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
        *([f"--customize-hook={base.hook}"] if base.hook else []),
        release.suite,
        str(partial),
        f"deb {signed}{mirror.uri} {release.suite} {' '.join(mirror.components)}",
    ]
    try:
        code, output = await run_tool(*argv, timeout_sec=_BUILD_TIMEOUT_SEC)
        if code != 0:
            tail = "\n".join(output.strip().splitlines()[-_TAIL_LINES:])
            raise SandboxStartError(
                f"mmdebstrap could not make a base of {release.distribution.name} {release.version} from {mirror.uri}: "
                f"name a mirror that this machine reaches (export {release.distribution.variable}=…)\n{tail}"
            )
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


async def make_base(reference: str) -> OfflineBase:
    """Make a base for an official image and put it into buildah's store, once, under a name of its own.

    Local and Apptainer sandboxes use it if the image's registry can't be reached.

    Raises:
        UsageError: No recipe is known for this image.
        MissingDependencyError: buildah or mmdebstrap is not installed, or this user has no namespaces.
        SandboxStartError: The base can't be made, or buildah refuses it.
    """
    base = offline_base(reference)
    if shutil.which("buildah") is None:
        raise MissingDependencyError("the base is put into buildah's store: apt-get install buildah")
    refusal, fix = rootless.refusal(min_linux=(0, 0)) if rootless.is_rootless() else ("", "")
    if refusal:
        raise MissingDependencyError(f"a base made by an ordinary user: {refusal}: {fix}")
    content = f"{MADE}:{base.name}"
    async with locked(f"import-{base.name}"):
        if await show_image(content) is None:
            await _import_into_buildah(base, await ensure_base_tar(base), content)
        code, output = await run_tool(*contained(), "buildah", "tag", content, str(base_name(reference)))
    if code != 0:
        raise SandboxStartError(f"buildah can't name the base that was made for {reference}: {tail(output)}")
    return base


async def _import_into_buildah(base: OfflineBase, tar: Path, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
        recipe = Path(folder) / "Dockerfile"
        recipe.write_text("\n".join(["FROM scratch", f"ADD {tar.name} /", *base.instructions, ""]), encoding="utf-8")
        code, output = await run_tool(
            *contained(), *dockerfile.owned_build(folder), "--quiet", *ulimits(),
            "-t", name, "-f", str(recipe), str(tar.parent),
        )  # fmt: skip
    if code != 0:
        why = await full_disk() if reports_full_disk(output) else tail(output)
        raise SandboxStartError(f"the base of {base.description} can't be imported into buildah: {why}")


async def import_into_docker(reference: str) -> OfflineBase | None:
    """Give Docker a base under the name of an official image, unless it has an image of that name.

    Its label :data:`MADE_LABEL` keeps local sandboxes from taking it for the real image.

    Returns:
        The base; None if Docker had an image of that name.

    Raises:
        UsageError: No recipe is known for this image.
        MissingDependencyError: docker or mmdebstrap is not installed.
        SandboxStartError: The base can't be made, or the daemon refuses it.
    """
    base = offline_base(reference)
    if shutil.which("docker") is None:
        raise MissingDependencyError("docker is not installed: apt-get install docker.io")
    async with locked("docker-import"):
        code, _ = await run_tool("docker", "image", "inspect", reference)
        if code == 0:
            return None
        tar = await ensure_base_tar(base)
        changes = [*base.instructions, f"LABEL {MADE_LABEL}=mmdebstrap"]
        options = [word for change in changes for word in ("--change", change)]
        code, output = await run_tool("docker", "import", *options, str(tar), reference)
        if code != 0:
            raise SandboxStartError(f"docker can't import the base as {reference}: {output.strip()}")
    return base
