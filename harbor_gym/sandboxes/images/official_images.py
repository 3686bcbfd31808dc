"""The official images that a base made only of packages may replace: the same release, the same Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass

from harbor_gym.errors import UsageError
from harbor_gym.sandboxes.images.apt_mirrors import DEBIAN, UBUNTU, Distribution

MADE = "localhost/harbor-gym-base"
"""Repository of ``harbor-gym base``'s bases in buildah's store. buildah looks short names up by the last part of a
repository, which must therefore not be an official image's."""

_DEFAULT_DOMAIN = "docker.io"
"""Domain of a reference without one. Source: the reference grammar of the distribution project."""

_LIBRARY = r"(?:docker\.io|index\.docker\.io|public\.ecr\.aws/docker|mirror\.gcr\.io)/library/"
"""Where official images are: at Docker Hub, and at its public mirrors."""

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


def full_reference(reference: str) -> str:
    """Spell a short reference out as a container engine understands it (``debian:12`` is an official image)."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"{_DEFAULT_DOMAIN}/{reference}" if slash else f"{_DEFAULT_DOMAIN}/library/{reference}"


def is_official(reference: str) -> bool:
    """Return whether a reference names an image of Debian, Ubuntu or Python, of any tag."""
    return _parts(reference) is not None


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
    parts = _parts(reference)
    if parts is None:
        return None
    family, tag, digest = parts
    if digest and not tag:
        return None  # a digest stands for one release, but does not say which
    return _python(tag) if family == "python" else _system(family, tag)


def base_name(reference: str) -> str | None:
    """Return the name in buildah's store of the base that was made for an official image; None for another image."""
    parts = _parts(reference)
    if parts is None:
        return None
    family, tag, digest = parts
    words = [family, tag or "latest", *([digest.replace(":", "-")] if digest else [])]
    return f"{MADE}:{'-'.join(words)}"


def _parts(reference: str) -> tuple[str, str, str] | None:
    """Return the family, the tag and the digest of an official image."""
    name = r"(debian|ubuntu|python)(?::([\w.-]+))?(?:@([\w:+.-]+))?"
    found = re.fullmatch(rf"{_LIBRARY}{name}", full_reference(reference))
    return None if found is None else (found[1], found[2] or "", found[3] or "")


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
