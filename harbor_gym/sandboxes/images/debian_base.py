"""Base images made of packages alone, where a mirror can be reached and no container registry."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.errors import MissingDependencyError, SandboxStartError
from harbor_gym.sandboxes.images.apt_mirrors import apt_mirrors
from harbor_gym.sandboxes.images.official_images import DEFAULT, EXCLUDED, OfflineBase, is_official, offline_base
from harbor_gym.sandboxes.tools import CONTAINED, run_tool

_BUILD_TIMEOUT_SEC = 600.0
_CONNECT_TIMEOUT_SEC = 20
_TAIL_LINES = 15
_LABEL = "harbor_gym.substitute=mmdebstrap"


async def ensure_base_tar(base: OfflineBase = DEFAULT) -> Path:
    """Return a base's root file system as a tar, making it once if the cache has none (about 20 s).

    Packages come from the mirror that the machine's own apt sources name for the distribution, or that
    ``HARBOR_GYM_DEBIAN_MIRROR`` or ``HARBOR_GYM_UBUNTU_MIRROR`` name, else from the distribution's own.

    Raises:
        MissingDependencyError: mmdebstrap is not installed.
        SandboxStartError: Their signatures can't be checked here, or the mirror does not deliver.
    """
    path = cache_dir() / "bases" / f"{base.name}.tar"
    if path.is_file():
        return path
    async with locked(f"base-{path.stem}"):
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            await _make_tar(base, path)
    return path


async def _make_tar(base: OfflineBase, path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise MissingDependencyError("the offline base image needs mmdebstrap: apt-get install mmdebstrap")
    release = base.release
    mirror = release.distribution.mirror(release.suite, await asyncio.to_thread(apt_mirrors))
    signed = f"[signed-by={mirror.signed_by}] " if mirror.signed_by else ""
    partial = path.with_name(f".{path.name}.partial")  # what a killed maker left is written over
    # An ordinary user's: it makes a user namespace of its own, in which it does without device files.
    contained = ("setpriv", "--pdeathsig", "KILL") if is_rootless() else CONTAINED
    argv = [
        *contained,
        "mmdebstrap",
        "--mode=unshare" if is_rootless() else "--mode=root",
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


async def import_into_docker(reference: str) -> None:
    """Give Docker an offline base under ``reference`` when it has no image of that name.

    It is the one that stands in for that image, or Debian 12's for a name that is none of an official image. It
    carries the label ``harbor_gym.substitute=mmdebstrap``, so nobody takes it for the real one.

    Raises:
        MissingDependencyError: docker or mmdebstrap is not installed.
        SandboxStartError: Nothing stands in for that official image, the base can't be made, or the daemon refuses it.
    """
    if shutil.which("docker") is None:
        raise MissingDependencyError("docker is not installed: apt-get install docker.io")
    async with locked("docker-import"):
        code, _ = await run_tool("docker", "image", "inspect", reference)
        if code == 0:
            return
        base = offline_base(reference) if is_official(reference) else DEFAULT
        tar = await ensure_base_tar(base)
        changes = [*base.instructions, f"LABEL {_LABEL}"]
        options = [word for change in changes for word in ("--change", change)]
        code, output = await run_tool("docker", "import", *options, str(tar), reference)
        if code != 0:
            raise SandboxStartError(f"docker can't import the offline base as {reference}: {output.strip()}")
