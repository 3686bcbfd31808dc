"""The names of official images, and of the bases that stand in for them where no registry is in reach."""

from __future__ import annotations

import re

MADE = "localhost/harbor-gym-base"
"""Repository in buildah's store of bases that were made of packages (a checkout's ``.ci/bases.py``). buildah looks
short names up by the last part of a repository, which must therefore not be an official image's."""

_DEFAULT_DOMAIN = "docker.io"
"""Domain of a reference without one. Source: the reference grammar of the distribution project."""

_LIBRARY = r"(?:docker\.io|index\.docker\.io|public\.ecr\.aws/docker|mirror\.gcr\.io)/library/"
"""Where official images are: at Docker Hub, and at its public mirrors."""


def full_reference(reference: str) -> str:
    """Spell a short reference out as a container engine understands it (``debian:12`` is an official image)."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"{_DEFAULT_DOMAIN}/{reference}" if slash else f"{_DEFAULT_DOMAIN}/library/{reference}"


def base_name(reference: str) -> str | None:
    """Return the name in buildah's store of the base that was made for an official image; None for another image."""
    parts = official_parts(reference)
    if parts is None:
        return None
    family, tag, digest = parts
    words = [family, tag or "latest", *([digest.replace(":", "-")] if digest else [])]
    return f"{MADE}:{'-'.join(words)}"


def official_parts(reference: str) -> tuple[str, str, str] | None:
    """Return the family, the tag and the digest of an image of Debian, Ubuntu or Python; None for another image."""
    name = r"(debian|ubuntu|python)(?::([\w.-]+))?(?:@([\w:+.-]+))?"
    found = re.fullmatch(rf"{_LIBRARY}{name}", full_reference(reference))
    return None if found is None else (found[1], found[2] or "", found[3] or "")
