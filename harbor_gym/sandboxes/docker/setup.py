"""Docker's description of an image, and the image that a set-up command makes from another, once for many sandboxes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from harbor_gym._runtime.cache import locked
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.declared import require_check, workdir_check
from harbor_gym.sandboxes.docker import engine as engine
from harbor_gym.sandboxes.docker.engine import docker
from harbor_gym.sandboxes.docker.exec import run_inside
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.labels import IMAGE_LABEL, PROJECT_LABEL
from harbor_gym.sandboxes.labels import labels as own_labels
from harbor_gym.sandboxes.setup_command import require_success, setting_up

_FORMAT = 1
_REPOSITORY = "harbor-gym-set-up"
_RUN_TIMEOUT_SEC = 120.0
_COMMIT_TIMEOUT_SEC = 600.0

_known: set[str] = set()
"""Names of set-up images that this process has seen. A removed one is noticed when a container is made from it."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The part of an image's configuration that the start of a container needs."""

    identity: str
    """The image's id in Docker."""

    system: str
    """``linux``, ``windows``."""

    has_healthcheck: bool

    has_volumes: bool
    """Whether it declares volumes, whose files ``docker commit`` leaves out."""

    entrypoint: list[str] | None
    command: list[str] | None


class ImageGoneError(SandboxStartError):
    """The base image of a set-up command does not exist any more."""


def is_missing(answer: str) -> bool:
    """Return whether Docker reported that it has no such image."""
    return "no such image" in answer.lower()


async def inspect_image(image: str) -> ImageInfo | None:
    """Look an image up in Docker; None if Docker has no such image.

    Raises:
        SandboxStartError: Docker does not answer.
    """
    code, output = await docker("image", "inspect", image)
    if code != 0 and is_missing(output):
        return None
    if code != 0:
        raise SandboxStartError(f"docker can't show the image {image!r}: {output.strip()}")
    shown: dict[str, Any] = json.loads(output)[0]
    config: dict[str, Any] = shown.get("Config") or {}
    return ImageInfo(
        identity=shown["Id"],
        system=shown["Os"],
        has_healthcheck=bool(config.get("Healthcheck")),
        has_volumes=bool(config.get("Volumes")),
        entrypoint=config.get("Entrypoint") or None,
        command=config.get("Cmd") or None,
    )


@dataclass(frozen=True, slots=True)
class DockerSetup:
    """A set-up command that runs once, and its container."""

    command: str
    """Shell text, for root."""

    look: ImageInfo
    """The base image."""

    project: str
    """Label by which a reaper finds the container if this process is killed."""

    made_for: str
    """Text for lists of images."""

    container: str
    """The container's name."""

    bounds: tuple[str, ...]
    """Options of ``docker run`` that limit the sandbox's use of the machine."""

    workdir: str | None
    """Working directory of the command; None is the image's own."""

    has_network: bool

    @property
    def image(self) -> str:
        """Name of the resulting image, a hash of the base image and the settings."""
        reported = [_FORMAT, self.look.identity, self.command, self.workdir, self.has_network]
        return f"{_REPOSITORY}:{hashlib.sha256(json.dumps(reported).encode()).hexdigest()[:32]}"


def forget(image: str) -> None:
    """Note that a set-up image was removed."""
    _known.discard(image)


async def set_up(setup: DockerSetup, *, timeout_sec: float) -> str:
    """Return the name of the image that ``setup`` makes; make it if Docker does not have it.

    The command runs in a container of its own, once for all processes that share the cache. Files are kept, processes
    are not. The image's settings are those of its base.

    Raises:
        ImageGoneError: The base image does not exist any more.
        SandboxStartError: The command failed, with its output, or ran out of time.
        TaskError: The working directory does not exist.
    """
    if setup.image in _known:
        return setup.image
    async with setting_up(timeout_sec), locked(f"docker-{setup.image.replace(':', '-')}"):
        if await inspect_image(setup.image) is None:
            await _make(setup)
    _known.add(setup.image)
    return setup.image


async def _make(setup: DockerSetup) -> None:
    if setup.has_network:
        await SHARED_NETWORK.make(anew=True)
    network = SHARED_NETWORK.name() if setup.has_network else "none"
    labels = {**own_labels(), PROJECT_LABEL: setup.project}
    words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    try:
        code, output = await docker(
            "run", "--detach", "--init", "--pull", "never", "--name", setup.container, "--network", network,
            *words, *setup.bounds, setup.look.identity, *engine.IDLE, timeout_sec=_RUN_TIMEOUT_SEC,
        )  # fmt: skip
        if code != 0:
            kind = ImageGoneError if is_missing(output) else SandboxStartError
            raise kind(f"setup_command: docker run failed: {output.strip()}")
        if setup.workdir is not None:
            found = await run_inside(setup.container, workdir_check(setup.workdir), flags=("--user", "0"))
            require_check(setup.workdir, found.return_code)
        where = ("--workdir", setup.workdir) if setup.workdir else ()
        done = await run_inside(setup.container, setup.command, flags=("--user", "0", *where))
        require_success(done.return_code, done.stdout or "")
        # Labels of a container can't be removed from its image; empty ones mean that it has no owner.
        changes = [f'LABEL {json.dumps(key)}=""' for key in labels]
        changes += [f"LABEL {json.dumps(IMAGE_LABEL)}={json.dumps(re.sub(r'[^\w./:@-]', '-', setup.made_for))}"]
        # docker commit would keep the container's command, which is not the base image's.
        for instruction, answer in (("ENTRYPOINT", setup.look.entrypoint), ("CMD", setup.look.command)):
            changes += [] if answer is None else [f"{instruction} {json.dumps(answer)}"]
        flags = [word for change in changes for word in ("--change", change)]
        code, output = await docker("commit", *flags, setup.container, setup.image, timeout_sec=_COMMIT_TIMEOUT_SEC)
        if code != 0:
            raise SandboxStartError(f"setup_command: docker commit failed: {output.strip()}")
    finally:
        await shielded(docker("rm", "--force", "--volumes", setup.container))
