"""Labels that record the owner of a container, network or volume, and the removal of everything with one label."""

from __future__ import annotations

from harbor_gym._runtime.owners import owner_label, run_id

OWNER_LABEL = "harbor_gym.owner"
RUN_LABEL = "harbor_gym.run"
IMAGE_LABEL = "harbor_gym.image"
"""Label of images that are kept from one reset to the next; any may be removed when no container uses it."""

PROJECT_LABEL = "com.docker.compose.project"

REMOVALS = {
    "container": ("rm", "--force", "--volumes"),
    "network": ("network", "rm"),
    "volume": ("volume", "rm", "--force"),
    "image": ("image", "rm"),
}


def labels() -> dict[str, str]:
    """Return the labels of all Docker objects of this process."""
    return {OWNER_LABEL: owner_label(), RUN_LABEL: run_id()}


def removal(kind: str, name: str) -> list[str]:
    """Return the Docker client's arguments that remove one object."""
    return [*REMOVALS[kind], name]
