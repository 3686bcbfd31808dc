"""The images of buildah's store."""

from __future__ import annotations

from collections.abc import Sequence

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.images.builder import run_buildah
from harbor_gym.sandboxes.tools import contained, find_program, tail

_NOT_KNOWN = "image not known"
"""End of buildah's output if its store has no such image. Source: ErrImageUnknown of containers/storage."""

_LOGGED = 'time="'
"""Beginning of a line of buildah's log. The first command after a killed build logs each incomplete layer."""


async def measure_store() -> tuple[str, int] | None:
    """Return the place of buildah's store and its space on disk in bytes; None without buildah, or if it can't tell."""
    if find_program("buildah") is None:
        return None
    # One process: an ordinary user's store is readable only where its subordinate ids are.
    # Where a build removes files meanwhile du fails, and prints the sum of the others.
    place = "root=$(buildah info --format '{{.store.GraphRoot}}')"
    script = f'{place} && {{ du -s --block-size=1 "$root" 2>/dev/null || :; }}'
    code, output = await run_buildah(*contained(), "sh", "-c", script, environment={})
    size, _, place = output.strip().rpartition("\n")[2].partition("\t")
    return (place, int(size)) if code == 0 and size.isdecimal() else None


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
    shown = "\n".join(line for line in output.splitlines() if not line.startswith(_LOGGED)).strip()
    if code == 0:
        return shown
    if shown.endswith(_NOT_KNOWN):
        return None
    raise SandboxStartError(f"buildah can't tell whether its store has the image {reference!r}: {tail(output)}")


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
