"""The options of Apptainer sandboxes, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from harbor_gym._runtime.cache import cache_dir
from harbor_gym.sandboxes.supervisor.options import NamespacedOptions


def _registry(value: str) -> str:
    if not value.startswith("oras://"):
        raise ValueError(f"{value!r} does not begin with oras://")
    return value


class ApptainerOptions(NamespacedOptions):
    """The options of a sandbox of Apptainer."""

    image_cache_dir: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())] | None = None
    """Folder of SIF files; None is ``sif`` in the cache directory."""

    force_pull: bool = False
    """Pull or build the SIF file anew."""

    registry: Annotated[str, AfterValidator(_registry)] | None = None
    """``oras://HOST/PATH`` to which ``harbor-gym sif build --push`` has pushed; searched before building."""

    network: Literal["task", "none", "machine"] = "machine"
    """``"machine"``: a public network is this machine's own, its loopback included; ``"task"``: the task's own network,
    as in a local sandbox; ``"none"``: only loopback."""

    overlay: Literal["auto", "kernel", "fuse"] = "auto"
    """The overlay that makes the image writable: ``"kernel"``, ``"fuse"`` (fuse-overlayfs), or ``"auto"``, the first
    that is available."""


def default_image_dir() -> Path:
    """Return the default folder of SIF files: ``sif`` in the cache directory."""
    return cache_dir() / "sif"
