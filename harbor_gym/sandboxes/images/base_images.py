"""Base images: from buildah's store, this machine's Docker or a registry, or made of packages."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass

from harbor_gym._runtime.cache import locked
from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym._runtime.disks import reports_full_disk
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images import official_images
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.images.docker_images import copy_from_docker, find_in_docker
from harbor_gym.sandboxes.images.plan import ROOT_AT_THE_TOP, StageStart
from harbor_gym.sandboxes.images.store import full_disk, show_image
from harbor_gym.sandboxes.tools import TIMED_OUT, contained, run_tool

_logger = logging.getLogger(__name__)

_PULL_TIMEOUT_SEC = 300.0
_SHOWN = (
    r"{{.FromImageID}}|{{len .OCIv1.Config.Volumes}}|{{.OCIv1.Config.User}}|{{.OCIv1.Config.WorkingDir}}|"
    r'[[{{range $n, $word := .Docker.Config.Shell}}{{if $n}},{{end}}{{printf "%q" $word}}{{end}}],'
    r'[{{range $n, $line := .Docker.Config.OnBuild}}{{if $n}},{{end}}{{printf "%q" $line}}{{end}}],'
    r'[{{range $n, $entry := .Docker.Config.Env}}{{if $n}},{{end}}{{printf "%q" $entry}}{{end}}]]'
)
_NO_ANSWER = re.compile(r'(?:Get|Head|Post) "https?://[^"]*": (.*)')
"""A pull's error for an unreachable server, as opposed to an answer of a registry. Source: Error of Go's net/url."""
_ID = re.compile(r"(sha256:)?[0-9a-f]{12,64}")

_unreachable: dict[str, str] = {}
"""Image in whose place this process uses a base of packages → why its registry can't be reached."""


@dataclass(frozen=True, slots=True)
class Base:
    """An available base image."""

    reference: str
    """The reference for buildah."""

    identity: str
    """Its id, which is part of the cache key."""

    start: StageStart = ROOT_AT_THE_TOP
    """Its USER, WORKDIR, SHELL, ONBUILD and ENV."""

    has_volumes: bool = False
    """Whether it has a VOLUME."""


async def resolve_base(reference: str) -> Base:
    """Find a base image; if its registry can't be reached, the base of packages that stands in for it.

    Raises:
        SandboxStartError: It is not available.
    """
    base, why = await find_base(reference)
    if base is not None:
        return base
    full, made = official_images.full_reference(reference), official_images.base_name(reference)
    base = None if made is None else await _inspected(made)
    if base is None:
        raise SandboxStartError(
            f"base image {reference!r} is not on this machine, and its registry is out of reach ({why}): pull it "
            f"where a registry can be reached (`buildah pull {full}`), give an image that is here its name (`buildah "
            f"tag IMAGE {full}`; `buildah pull oci-archive:FILE` or docker-archive:FILE brings one), or give the "
            "sandbox option image=oci-archive:FILE in place of the task's own image"
        )
    if full not in _unreachable:
        _unreachable[full] = why
        _logger.warning("the registry of %s is out of reach: using the base of packages in its place", reference)
    return base


async def find_base(reference: str) -> tuple[Base | None, str]:
    """Look for an image in buildah's store and in Docker, and pull it if neither has it.

    Returns:
        The image, or None and why its registry can't be reached.

    Raises:
        SandboxStartError: Its registry refuses it, or buildah fails.
        TaskError: Its files have ids that this user lacks.
    """
    full = official_images.full_reference(reference)
    for candidate in _local_names(reference, full):
        if (found := await _inspected(candidate)) is not None:
            return found, ""
    if (base := await docker_base(reference)) is not None:
        return base, ""
    if full in _unreachable:
        return None, _unreachable[full]
    with ticking(f"pulling {full}", delay_sec=SLOW_SEC):
        code, output = await run_tool(*contained(), "buildah", "pull", "--quiet", full, timeout_sec=_PULL_TIMEOUT_SEC)
    if code == TIMED_OUT:
        raise SandboxStartError(f"base image {reference!r} was not pulled within {_PULL_TIMEOUT_SEC:g} s")
    if code != 0:
        require_ids(output, f"base image {reference!r}")
        why = output.strip().rpartition("\n")[2] or f"status {code}"
        if (unanswered := _NO_ANSWER.search(why)) is not None:
            return None, unanswered[1]
        why = await full_disk() if reports_full_disk(output) else why
        raise SandboxStartError(f"base image {reference!r} can't be pulled: {why}")
    if (found := await _inspected(full)) is None:
        raise SandboxStartError(f"base image {reference!r} was pulled, but the store does not have it")
    return found, ""


def _local_names(reference: str, full: str) -> list[str]:
    """Return an image's possible names in buildah's store, which matches a short name with any repository."""
    if full == reference:
        return [full]
    return [f"localhost/{reference}", full, *([reference] if _ID.fullmatch(reference) else [])]


async def _inspected(reference: str) -> Base | None:
    shown = await show_image(reference, _SHOWN)
    if shown is None:
        return None
    image_id, volumes, user, workdir, lists = shown.split("|", 4)
    shell, triggers, env = map(tuple, json.loads(lists))
    return Base(reference, image_id, StageStart(user, workdir or "/", shell, triggers, env), volumes != "0")


async def docker_base(reference: str) -> Base | None:
    """Return Docker's image of this name, copied into buildah's store."""
    image_id = await find_in_docker(reference)
    if image_id is None:
        return None
    with ticking(f"copying Docker's image {reference} for sandboxes", delay_sec=SLOW_SEC):
        async with locked(f"docker-image-{image_id.removeprefix('sha256:')[:32]}"):
            copied = await copy_from_docker(image_id)
    base = await _inspected(copied)
    if base is None:
        raise SandboxStartError(f"Docker's image {reference} was copied to buildah, but the store does not have it")
    return base
