"""Copy images of this machine's Docker daemon to buildah without a registry."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.images.official_images import base_name
from harbor_gym.sandboxes.images.store import show_image
from harbor_gym.sandboxes.tools import contained, run_tool

MADE_LABEL = "harbor_gym.made_base"
"""Label of the bases that were made of packages under an official image's name, and of images built on them."""

_ASK_TIMEOUT_SEC = 20.0
_COPY_TIMEOUT_SEC = 600.0


async def find_in_docker(reference: str) -> str | None:
    """Return an image's id in Docker; None if Docker has no such image, or is not installed.

    A base that was made of packages under the name of an official image is not that image.
    """
    if shutil.which("docker") is None:
        return None
    # Docker 28 has no entry for labels of an image without one, at which a template fails.
    code, output = await run_tool(
        "docker", "image", "inspect", "--format", "{{.Id}} {{json .Config}}", reference, timeout_sec=_ASK_TIMEOUT_SEC
    )
    if code != 0:
        return None
    image_id, _, config = output.strip().partition(" ")
    is_made = bool((json.loads(config).get("Labels") or {}).get(MADE_LABEL))
    return None if is_made and base_name(reference) is not None else image_id


async def copy_from_docker(image_id: str) -> str:
    """Copy an image from Docker into buildah's store, unless it is there already; return its id there.

    Raises:
        SandboxStartError: Docker or buildah refused.
        TaskError: Its files have ids that this user lacks.
    """
    # Docker's id is the hash of the configuration, as buildah's, or of the manifest (Docker 29).
    name = f"localhost/harbor-gym-docker:{image_id.removeprefix('sha256:')}"
    if (known := await show_image(name)) is not None:
        return known
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("pull")) as folder:
        archive = Path(folder) / "image.tar"
        for argv in (
            ("docker", "save", "--output", str(archive), image_id),
            (*contained(), "buildah", "pull", "--quiet", f"docker-archive:{archive}"),
        ):
            code, output = await run_tool(*argv, timeout_sec=_COPY_TIMEOUT_SEC)
            if code != 0:
                require_ids(output, f"Docker's image {image_id}")
                tail = "\n".join(output.strip().splitlines()[-5:])
                raise SandboxStartError(f"Docker's image {image_id} can't be copied to buildah: {tail}")
    copied = output.strip().splitlines()[-1]
    await run_tool(*contained(), "buildah", "tag", copied, name)
    return copied
