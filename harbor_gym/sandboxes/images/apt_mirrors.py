"""Mirrors for packages of Debian and Ubuntu: those of this machine's apt, or each distribution's own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from harbor_gym.errors import SandboxStartError

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
