"""The settings of an OCI image's ``config`` that its sandboxes use, for every form of image.

Source: the OCI image specification's config.md, with Docker's HEALTHCHECK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harbor_gym.sandboxes.health import Healthcheck, healthcheck_config, healthcheck_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """An image's defaults for the commands of its sandboxes."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables set by ENV."""

    workdir: str = "/"
    """Working directory set by WORKDIR."""

    user: str = "0"
    """USER as written: name or uid, possibly with a group."""

    entrypoint: tuple[str, ...] = ()
    """The words of ENTRYPOINT."""

    command: tuple[str, ...] = ()
    """The words of CMD, which only a service of a Compose project runs."""

    healthcheck: Healthcheck | None = None
    """The check set by HEALTHCHECK."""

    volumes: tuple[str, ...] = ()
    """Directories set by VOLUME. A sandbox treats them as ordinary ones, as none of its files outlives it."""

    high_ids: tuple[int, ...] = ()
    """The uids and gids above 65535 of files in the image, in order; empty if they can't be read."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :class:`ImageSettings` that an image's ``config`` has."""
    return {
        "env": dict(entry.partition("=")[::2] for entry in config.get("Env") or []),
        "workdir": config.get("WorkingDir") or "/",
        "user": config.get("User") or "0",
        "entrypoint": tuple(config.get("Entrypoint") or ()),
        "command": tuple(config.get("Cmd") or ()),
        "healthcheck": healthcheck_of(config),
        "volumes": tuple(config.get("Volumes") or ()),
    }


def config_of(settings: ImageSettings) -> dict[str, Any]:
    """Return a ``config`` that :func:`settings_of` reads as these settings."""
    return {
        "Env": [f"{name}={value}" for name, value in settings.env.items()],
        "WorkingDir": settings.workdir,
        "User": settings.user,
        "Entrypoint": list(settings.entrypoint),
        "Cmd": list(settings.command),
        "Volumes": {volume: {} for volume in settings.volumes},
        **healthcheck_config(settings.healthcheck),
    }
