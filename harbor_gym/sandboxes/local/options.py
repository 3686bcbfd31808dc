"""The options of local sandboxes, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from harbor_gym.sandboxes.options import Text
from harbor_gym.sandboxes.supervisor.options import NamespacedOptions


class LocalOptions(NamespacedOptions):
    """The options of a local sandbox. Those of its image do not reach a separate verifier's."""

    image: Text | None = None
    """An image by name, or an archive of one, instead of the task's own."""

    rootfs: Path | None = None
    """A root file system instead of an image, as a directory or a tar. It is copied once, and again after a change.
    Each start looks for one, which takes long for a directory of many files; a tar is one file."""

    forkable: bool = False
    """Let a running episode be copied with its processes (``fork(mode="exact")``), by CRIU."""

    @model_validator(mode="after")
    def _name_one_image(self) -> Self:
        if self.image is not None and self.rootfs is not None:
            raise ValueError("sandbox options image and rootfs: one or the other")
        if self.build_dockerfile and (self.image or self.rootfs):
            raise ValueError("sandbox option build_dockerfile: not with image or rootfs, which replace what it builds")
        return self
