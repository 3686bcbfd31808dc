"""The images of buildah's store."""

from __future__ import annotations

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.images.builder import run_buildah
from harbor_gym.sandboxes.tools import CONTAINED, tail

_NOT_KNOWN = "image not known"
"""How buildah ends where its store has no such image. Source: ErrImageUnknown of containers/storage."""

_LOGGED = 'time="'
"""How a line of buildah's log begins. The first command after a killed build logs each layer that was not finished."""


async def show_image(reference: str, template: str = "{{.FromImageID}}") -> str | None:
    """Return what buildah shows of an image in its store, by default the id; None where it has no such image.

    Args:
        reference: A name or an id.
        template: What to show, as buildah's ``--format`` takes it.

    Raises:
        SandboxStartError: Buildah can't tell.
    """
    argv = (*CONTAINED, "buildah", "inspect", "--type", "image", "--format", template, reference)
    code, output = await run_buildah(*argv, environment={})
    shown = "\n".join(line for line in output.splitlines() if not line.startswith(_LOGGED)).strip()
    if code == 0:
        return shown
    if shown.endswith(_NOT_KNOWN):
        return None
    raise SandboxStartError(f"buildah can't tell whether its store has the image {reference!r}: {tail(output)}")
