"""Make bases of packages of Debian or Ubuntu that take the place of official images, once a machine.

    python .ci/bases.py [--docker] [--if-missing] IMAGE ...      such as debian:bookworm-slim, python:3.12

For machines that reach a mirror of packages but no registry. Local and Apptainer sandboxes use a base from buildah's
store where its image's registry is out of reach; a registry that answers comes first. A base is of the image's release,
and not that image: what it lacks, it lacks.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym._runtime.console.progress import ticking
from harbor_gym._runtime.disks import reports_full_disk
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import HarborGymError, MissingDependencyError, SandboxStartError, UsageError
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.images.base_images import find_base
from harbor_gym.sandboxes.images.builder import ulimits
from harbor_gym.sandboxes.images.docker_images import MADE_LABEL
from harbor_gym.sandboxes.images.official_images import MADE, base_name, official_parts
from harbor_gym.sandboxes.images.store import full_disk, show_image
from harbor_gym.sandboxes.tools import contained, run_tool, tail, tied

_BUILD_TIMEOUT_SEC = 600.0
_CONNECT_TIMEOUT_SEC = 20
_TAIL_LINES = 15
_END_OF_TAR = 1024
_NEXT_LINE_SEC = 10.0
"""Seconds between the line that announces some work and the first line about its progress."""

# --- mirrors of packages ----------------------------------------------------------------------------------------------

_APT = Path("/etc/apt")
_KEYRINGS = Path("/usr/share/keyrings")


@dataclass(frozen=True, slots=True)
class Mirror:
    """One source of packages, as in the machine's own configuration."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """The sources of one distribution's packages."""

    name: str
    components: tuple[str, ...]
    """Components with the packages of a base."""

    keyring: str
    keyring_packages: tuple[str, ...]
    """Packages with the keyring; the name differs among releases."""

    uri: re.Pattern[str]
    """Pattern of the end of its mirrors' addresses."""

    public: str
    """Its public mirror. Source: the distribution's own default of sources.list."""

    @property
    def variable(self) -> str:
        """The environment variable that names another mirror."""
        return f"HARBOR_GYM_{self.name.upper()}_MIRROR"

    def mirror(self, suite: str, mirrors: list[Mirror]) -> Mirror:
        """Return a mirror of a suite: any mirror of a distribution has all of its suites.

        Args:
            suite: The release's code name.
            mirrors: The mirrors of this machine's apt.

        Raises:
            SandboxStartError: This machine has no keyring to check the packages' signatures.
        """
        if chosen := os.environ.get(self.variable):
            return Mirror(chosen, (suite,), self.components, self._keyring())
        usable = [item for item in mirrors if self.components[0] in item.components]
        archives = [item for item in usable if self.uri.search(item.uri)]
        exact = [item for item in usable if suite in item.suites]
        for found in (*(item for item in archives if item in exact), *archives, *exact):
            return Mirror(found.uri, (suite,), self.components, found.signed_by)
        return Mirror(self.public, (suite,), self.components, self._keyring())

    def _keyring(self) -> str:
        path = _KEYRINGS / self.keyring
        if not path.is_file():
            packages = " or ".join(self.keyring_packages)
            raise SandboxStartError(
                f"packages of {self.name} can't be checked here: {path} is missing. Install it (apt-get install "
                f"{packages}; where apt knows neither, take the package's .deb from {self.name})"
            )
        return str(path)


DEBIAN = Distribution(
    "Debian", ("main",), "debian-archive-keyring.gpg", ("debian-archive-keyring",),
    re.compile(r"/debian/?$"), "http://deb.debian.org/debian",
)  # fmt: skip
UBUNTU = Distribution(
    "Ubuntu", ("main", "universe"), "ubuntu-archive-keyring.gpg", ("ubuntu-keyring", "ubuntu-archive-keyring"),
    re.compile(r"/ubuntu(-ports)?/?$"),
    "http://archive.ubuntu.com/ubuntu" if os.uname().machine == "x86_64" else "http://ports.ubuntu.com/ubuntu-ports",
)  # fmt: skip


def apt_mirrors(apt: Path = _APT) -> list[Mirror]:
    """Read the package sources below ``apt``, one-line and deb822 alike, in apt's own order."""
    mirrors: list[Mirror] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace", encoding="utf-8")
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


# --- what a base consists of ------------------------------------------------------------------------------------------

_PACKAGES = ("ca-certificates", "less", "procps", "python3", "tmux", "vim-tiny")
_UBUNTU_PACKAGES = ("apt", "e2fsprogs", "mount", "sensible-utils", "ubuntu-keyring")
"""Packages of Ubuntu's images that are not of the priority *required* there, or are it in one release alone."""
_PYTHON_PACKAGES = ("python3-pip", "python3-venv")
_PYTHON_TOOLS = ("build-essential", "curl", "git", "python3-dev", "wget")
"""Packages that a full image of Python has beyond its slim form, as far as tasks use them."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")


@dataclass(frozen=True, slots=True)
class Release:
    """A release that bases are made of."""

    distribution: Distribution
    suite: str
    version: str
    python: str
    """The version of its python3."""

    packages: tuple[str, ...] = ()
    """Packages of its image that are not of the priority *required*. In Debian apt is."""


RELEASES = (
    Release(DEBIAN, "trixie", "13", "3.13"),
    Release(DEBIAN, "bookworm", "12", "3.11"),
    Release(UBUNTU, "noble", "24.04", "3.12", (*_UBUNTU_PACKAGES, "unminimize")),
    Release(UBUNTU, "jammy", "22.04", "3.10", (*_UBUNTU_PACKAGES, "adduser")),
)
"""The newest release of each distribution is first: a tag without a release means it."""

_ANY_RELEASE = ("", "latest", "stable", "rolling", "stable-slim")


@dataclass(frozen=True, slots=True)
class OfflineBase:
    """A base that can be made only of packages."""

    release: Release
    is_python: bool = False
    """Whether it replaces an image of Python, with programs called ``python`` and ``pip``."""

    is_slim: bool = True

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages to install."""
        packages = (*_PACKAGES, *self.release.packages)
        if not self.is_python:
            return packages
        return (*packages, *_PYTHON_PACKAGES, *(() if self.is_slim else _PYTHON_TOOLS))

    @property
    def hook(self) -> str:
        """Shell text that completes the root file system ``$1``."""
        if not self.is_python:
            return ""
        version = self.release.python
        links = {f"/usr/bin/python{version}": ("python", "python3"), "/usr/bin/pip3": ("pip", "pip3", f"pip{version}")}
        lines = [f'ln -sf {target} "$1/usr/local/bin/{name}"' for target, names in links.items() for name in names]
        # The official image lets pip install into the system.
        return " && ".join([*lines, f'rm -f "$1/usr/lib/python{version}/EXTERNALLY-MANAGED"'])

    @property
    def instructions(self) -> list[str]:
        """The Dockerfile instructions for the image's settings."""
        if not self.is_python:
            return [f"ENV PATH={_PATH}", 'CMD ["bash"]']
        return [f"ENV PATH={_PATH} LANG=C.UTF-8", 'CMD ["python3"]']

    @property
    def name(self) -> str:
        """A name that changes whenever the recipe does."""
        recipe = json.dumps([self.release.suite, os.uname().machine, self.packages, EXCLUDED, self.hook])
        kind = ("-python" if self.is_slim else "-python-full") if self.is_python else ""
        return f"{self.release.suite}{kind}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"

    @property
    def description(self) -> str:
        """A description for people."""
        python = f" with Python {self.release.python}" if self.is_python else ""
        return f"{self.release.distribution.name} {self.release.version}{python}"


DEFAULT = OfflineBase(RELEASES[1])
"""Debian 12, the base of the shipped tasks."""


def offline_base(reference: str) -> OfflineBase:
    """Return the base to make for an official image: of its release, and for ``python`` with its Python version.

    Raises:
        UsageError: No recipe is known; the message lists the known ones.
    """
    found = find_offline_base(reference)
    if found is None:
        raise UsageError(f"no base can be made of packages for {reference!r}, only for {_known()}")
    return found


def find_offline_base(reference: str) -> OfflineBase | None:
    """Do as :func:`offline_base`, but return None if no recipe is known."""
    parts = official_parts(reference)
    if parts is None:
        return None
    family, tag, digest = parts
    if digest and not tag:
        return None  # a digest stands for one release, but does not say which
    return _python(tag) if family == "python" else _system(family, tag)


def _system(family: str, tag: str) -> OfflineBase | None:
    releases = [release for release in RELEASES if release.distribution.name.lower() == family]
    if tag in _ANY_RELEASE:
        return OfflineBase(releases[0])
    for release in releases:
        if re.fullmatch(rf"({release.suite}|{re.escape(release.version)})([.-].*)?", tag):
            return OfflineBase(release)
    return None


def _python(tag: str) -> OfflineBase | None:
    found = re.fullmatch(r"(?:(3)(?:\.(\d+))?(?:\.\d+)?|latest)?-?(slim)?-?([a-z]*)", tag)
    if found is None:
        return None
    _, minor, slim, suite = found.groups()
    for release in RELEASES:
        if suite not in ("", release.suite) or (minor and release.python != f"3.{minor}"):
            continue
        return OfflineBase(release, is_python=True, is_slim=slim is not None)
    return None


def _known() -> str:
    systems = ", ".join(f"{release.distribution.name.lower()}:{release.version}" for release in RELEASES)
    pythons = ", ".join(f"python:{release.python}" for release in RELEASES)
    return f"{systems}, {pythons}"


# --- making it --------------------------------------------------------------------------------------------------------


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


# --- the command ------------------------------------------------------------------------------------------------------


async def provide(image: str, *, docker: bool = False, if_missing: bool = False) -> str:
    """Give buildah's store or Docker a base for an official image; return a sentence on it.

    Args:
        image: The image.
        docker: Give it to Docker, under the image's own name, unless Docker has such an image.
        if_missing: Do nothing if this machine has the image, or its registry gives it.

    Raises:
        HarborGymError: As :func:`make_base`, :func:`import_into_docker` and ``find_base``.
    """
    with ticking(image, delay_sec=_NEXT_LINE_SEC):
        if docker:
            given = await import_into_docker(image)
            if given is None:
                return f"{image}: Docker has it"
            return f"{image}: Docker has {given.description} under this name, which is not the real image"
        if if_missing and (await find_base(image))[0] is not None:
            return f"{image}: it is on this machine, no base is needed"
        made = await make_base(image)
    return f"{image}: sandboxes use {made.description} where the registry is out of reach"


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="an official image, as debian:bookworm-slim")
    parser.add_argument("--docker", action="store_true", help="give the base to Docker, under the image's name")
    parser.add_argument("--if-missing", action="store_true", help="only if it is neither here nor in the registry")
    chosen = parser.parse_args(arguments)
    try:
        for image in chosen.images:
            offline_base(image)
        for image in chosen.images:
            print(f"{image}: looking for it; a base of packages takes 30 s", file=sys.stderr)
            print(asyncio.run(provide(image, docker=chosen.docker, if_missing=chosen.if_missing)))
    except HarborGymError as exc:
        sys.exit(f"error: {exc}")


if __name__ == "__main__":
    main()
