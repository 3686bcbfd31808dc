"""Images that a Docker daemon of this machine holds, made known to buildah without a registry."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.tools import CONTAINED, run_tool

_SUBSTITUTE_LABEL = "harbor_gym.substitute"
_ASK_TIMEOUT_SEC = 20.0
_COPY_TIMEOUT_SEC = 600.0


async def find_in_docker(reference: str) -> tuple[str, bool] | None:
    """Look an image up in Docker.

    Returns:
        Its id, and whether it is a stand-in that harbor_gym made, or stands on one; None if Docker has no such image,
        or there is no Docker.
    """
    if shutil.which("docker") is None:
        return None
    shown = '{{.Id}} {{index .Config.Labels "' + _SUBSTITUTE_LABEL + '"}}'
    code, output = await run_tool(
        "docker", "image", "inspect", "--format", shown, reference, timeout_sec=_ASK_TIMEOUT_SEC
    )
    if code != 0:
        return None
    image_id, _, label = output.strip().partition(" ")
    return image_id, label.strip() not in ("", "<no value>")


async def copy_from_docker(image_id: str) -> str:
    """Copy an image from Docker into buildah's store, unless it is there already; return its id there.

    Raises:
        SandboxStartError: Docker or buildah refused.
    """
    # Docker's id is the hash of the configuration, as buildah's, or of the manifest (Docker 29).
    name = f"localhost/harbor-gym-docker:{image_id.removeprefix('sha256:')}"
    inspect = (*CONTAINED, "buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}")
    code, output = await run_tool(*inspect, name)
    if code == 0:
        return output.strip()
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("pull")) as folder:
        archive = Path(folder) / "image.tar"
        for argv in (
            ("docker", "save", "--output", str(archive), image_id),
            (*CONTAINED, "buildah", "pull", "--quiet", f"docker-archive:{archive}"),
        ):
            code, output = await run_tool(*argv, timeout_sec=_COPY_TIMEOUT_SEC)
            if code != 0:
                tail = "\n".join(output.strip().splitlines()[-5:])
                raise SandboxStartError(f"Docker's image {image_id} can't be copied to buildah: {tail}")
    copied = output.strip().splitlines()[-1]
    await run_tool(*CONTAINED, "buildah", "tag", copied, name)
    return copied
