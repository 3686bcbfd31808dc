"""A Debian or Ubuntu base image made from packages alone, where a mirror can be reached and no container registry."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from harbor_gym.cache import cache_dir, locked
from harbor_gym.errors import MissingDependencyError, SandboxStartError
from harbor_gym.ordinary import is_ordinary
from harbor_gym.sandboxes.tools import CONTAINED, run_tool

_DEBIAN_SUITE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = ("ca-certificates", "less", "procps", "python3", "tmux", "vim-tiny")
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
_BUILD_TIMEOUT_SEC = 600.0
_LABEL = "harbor_gym.substitute=mmdebstrap"
_APT = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Mirror:
    """One source of packages, as the machine's own configuration names it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None


async def ensure_base_tar() -> Path:
    """Return the base image's root file system as a tar, making it once if the cache has none (about 20 s).

    Packages come from the mirror that the machine's own apt sources name.

    Raises:
        MissingDependencyError: mmdebstrap is not installed.
        SandboxStartError: The machine names no Debian or Ubuntu mirror, or the mirror does not deliver.
    """
    path = cache_dir() / "bases" / f"{base_name()}.tar"
    if path.is_file():
        return path
    async with locked(f"base-{path.stem}"):
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            await _make_tar(path)
    return path


def base_name() -> str:
    """Return a name that changes whenever the base image's recipe does.

    Raises:
        SandboxStartError: The machine names no mirror that a base could be made from.
    """
    suite, _ = _choose_mirror(apt_mirrors())
    recipe = json.dumps([suite, os.uname().machine, _PACKAGES, _EXCLUDED])
    return f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def description() -> str:
    """Return what to call the base where it stands in for a real image.

    Raises:
        SandboxStartError: The machine names no mirror that a base could be made from.
    """
    return f"harbor-gym offline base (mmdebstrap {_choose_mirror(apt_mirrors())[0]})"


async def _make_tar(path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise MissingDependencyError("the offline base image needs mmdebstrap: apt-get install mmdebstrap")
    suite, mirror = _choose_mirror(await asyncio.to_thread(apt_mirrors))
    signed = f"[signed-by={mirror.signed_by}] " if mirror.signed_by else ""
    partial = path.with_name(f".{path.name}.partial")
    excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    # An ordinary user's: it makes a user namespace of its own, in which it does without device files.
    contained = ("setpriv", "--pdeathsig", "KILL") if is_ordinary() else CONTAINED
    argv = [
        *contained,
        "mmdebstrap",
        "--mode=unshare" if is_ordinary() else "--mode=root",
        "--variant=minbase",
        "--format=tar",
        f"--include={','.join(_PACKAGES)}",
    ]
    argv += [*excludes, suite, str(partial), f"deb {signed}{mirror.uri} {suite} main"]
    try:
        code, output = await run_tool(*argv, timeout_sec=_BUILD_TIMEOUT_SEC)
        if code != 0:
            tail = "\n".join(output.strip().splitlines()[-15:])
            raise SandboxStartError(f"mmdebstrap could not make the offline base image:\n{tail}")
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _choose_mirror(mirrors: list[Mirror]) -> tuple[str, Mirror]:
    """Return the suite to make the base from, and where its packages are.

    Debian 12 wherever a Debian archive is named, since any carries every suite; on Ubuntu the machine's own release.
    """
    usable = [mirror for mirror in mirrors if "main" in mirror.components]
    exact = [mirror for mirror in usable if _DEBIAN_SUITE in mirror.suites]
    archives = [mirror for mirror in usable if re.search(r"/debian/?$", mirror.uri)]
    for mirror in [*exact, *archives]:
        return _DEBIAN_SUITE, mirror
    for mirror in usable:
        if re.search(r"/ubuntu(-ports)?/?$", mirror.uri) and mirror.suites:
            return mirror.suites[0].partition("-")[0], mirror
    raise SandboxStartError(
        "no apt source of this machine names a Debian or Ubuntu archive, so the offline base image can't be made: "
        "add one to /etc/apt/sources.list.d, or pull the task's base image where a registry can be reached"
    )


def apt_mirrors(apt: Path = _APT) -> list[Mirror]:
    """Read the package sources below ``apt``, one-line and deb822 alike, in apt's own order."""
    mirrors: list[Mirror] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".list":
            mirrors += _one_line_mirrors(text)
        elif path.suffix == ".sources":
            mirrors += _deb822_mirrors(text)
    return mirrors


def _one_line_mirrors(text: str) -> list[Mirror]:
    mirrors: list[Mirror] = []
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if found:
            signed_by = re.search(r"\bsigned-by=(\S+)", found[1] or "")
            keyring = signed_by[1] if signed_by else None
            mirrors.append(Mirror(found[2], (found[3],), tuple(found[4].split()), keyring))
    return mirrors


def _deb822_mirrors(text: str) -> list[Mirror]:
    mirrors: list[Mirror] = []
    text = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", text):
        fields = {
            name.lower(): value.strip()
            for name, value in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        # A key may also be written inline, over several lines: apt then needs the file, which only a path gives.
        signed_by = fields.get("signed-by", "")
        keyring = signed_by if signed_by.startswith("/") and "\n" not in signed_by else None
        suites, components = tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split())
        mirrors += [Mirror(uri, suites, components, keyring) for uri in fields.get("uris", "").split()]
    return mirrors


async def import_into_docker(reference: str) -> None:
    """Give Docker the offline base under ``reference`` when it has no image of that name.

    The image carries the label ``harbor_gym.substitute=mmdebstrap``, so nobody takes it for the real one.

    Raises:
        MissingDependencyError: docker or mmdebstrap is not installed.
        SandboxStartError: The base can't be made, or the daemon refuses it.
    """
    if shutil.which("docker") is None:
        raise MissingDependencyError("docker is not installed: apt-get install docker.io")
    async with locked("docker-import"):
        code, _ = await run_tool("docker", "image", "inspect", reference)
        if code == 0:
            return
        tar = await ensure_base_tar()
        changes = ["-c", f"ENV PATH={PATH}", "-c", 'CMD ["bash"]', "-c", f"LABEL {_LABEL}"]
        code, output = await run_tool("docker", "import", *changes, str(tar), reference)
        if code != 0:
            raise SandboxStartError(f"docker can't import the offline base as {reference}: {output.strip()}")
