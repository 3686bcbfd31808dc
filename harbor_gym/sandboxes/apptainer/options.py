"""The options of Apptainer sandboxes, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harbor_gym._runtime.cache import cache_dir
from harbor_gym.errors import UsageError

_OVERLAYS = ("auto", "kernel", "fuse")
_MOUNTS = ("proc", "sys", "dev", "devpts", "home", "tmp", "hostfs", "cwd", "bind-paths")
"""Source: ``apptainer exec --help``, ``--no-mount``."""
_ALWAYS_LEFT_OUT = ("home", "tmp", "hostfs", "cwd", "bind-paths", "sys")
_NEEDED = ("proc", "dev", "devpts")


@dataclass(frozen=True, slots=True)
class ApptainerOptions:
    """The options of a sandbox, checked."""

    image_cache_dir: Path
    """Folder of SIF files."""

    force_pull: bool
    registry: str | None
    """Registry of built SIF files, as ``oras://HOST/PATH``."""

    no_mount: tuple[str, ...]
    extra_args: tuple[str, ...]
    setup_command: str | None
    overlay: Literal["auto", "kernel", "fuse"]


def checked_options(
    *,
    image_cache_dir: Path | str | None,
    force_pull: bool,
    registry: str | None,
    no_mount: str | Sequence[str],
    extra_args: Sequence[str],
    setup_command: str | None,
    overlay: str,
) -> ApptainerOptions:
    """Return the options.

    Raises:
        UsageError: An option has an invalid value; the message names it.
    """
    names = no_mount.split(",") if isinstance(no_mount, str) else list(no_mount)
    left_out = [name for name in map(str.strip, names) if name]
    for name in left_out:
        if name not in _MOUNTS:
            raise UsageError(f"sandbox option no_mount: {name!r} is none of {', '.join(_MOUNTS)}")
        if name in _NEEDED:
            raise UsageError(f"sandbox option no_mount: a sandbox can't do without {name}")
    if overlay not in _OVERLAYS:
        raise UsageError(f"sandbox option overlay: {overlay!r} is none of {', '.join(_OVERLAYS)}")
    if registry is not None and not registry.startswith("oras://"):
        raise UsageError(f"sandbox option registry: {registry!r} does not begin with oras://")
    if isinstance(extra_args, str):
        raise UsageError(f"sandbox option extra_args: {extra_args!r} is no list of words")
    if setup_command is not None and not setup_command.strip():
        raise UsageError("sandbox option setup_command is empty")
    return ApptainerOptions(
        Path(image_cache_dir).expanduser().absolute() if image_cache_dir is not None else default_image_dir(),
        bool(force_pull),
        registry,
        tuple(dict.fromkeys((*_ALWAYS_LEFT_OUT, *left_out))),
        tuple(extra_args),
        setup_command,
        overlay,
    )


def default_image_dir() -> Path:
    """Return the default folder of SIF files: ``sif`` in the cache directory."""
    return cache_dir() / "sif"
