"""Run a set-up command once for many sandboxes: the files that it wrote become a layer of an image."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harbor_gym._runtime.cache import Hold, locked
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import UsageError
from harbor_gym.sandboxes.declared import require_check, workdir_check
from harbor_gym.sandboxes.images import layers
from harbor_gym.sandboxes.images.build import Image, hold_known, load_image, write_record
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.local.client import SupervisedSandbox
from harbor_gym.sandboxes.local.options import Limits
from harbor_gym.sandboxes.setup_command import require_success, setting_up
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec

_FORMAT = 3
_PRUNE_PAUSE_SEC = 0.05
_KILL_THE_REST = "kill -9 -1 2>/dev/null; while kill -0 -1 2>/dev/null; do :; done; true"
"""Processes that the command left running must not write while its files are copied; later sandboxes lack them."""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The sandbox options that determine the image of a task's sandbox."""

    image: str | None = None
    rootfs: Path | None = None
    setup_command: str | None = None
    build_dockerfile: bool = False

    def __post_init__(self) -> None:
        if self.image is not None and self.rootfs is not None:
            raise UsageError("sandbox options image and rootfs: one or the other")
        if self.build_dockerfile and (self.image or self.rootfs):
            raise UsageError("sandbox option build_dockerfile: not with image or rootfs, which replace what it builds")
        for name, value in (("image", self.image), ("setup_command", self.setup_command)):
            if value is not None and not value.strip():
                raise UsageError(f"sandbox option {name} is empty")


@dataclass(frozen=True, slots=True)
class Setup:
    """A set-up command that runs once, and its settings."""

    command: str
    """Shell text, for root."""

    directories: Mapping[str, int | None]
    """Directories that every sandbox of the task has from its start → mode; the command can rely on them."""

    workdir: str
    """Working directory of the command: one of ``directories``, or a directory of the image."""

    env: Mapping[str, str]
    """The image's environment, without the task's and the trial's, whose secrets would be kept in the cache."""


async def hold_set_up(image: Image, setup: Setup, limits: Limits, *, timeout_sec: float) -> tuple[Image, Hold]:
    """Return the image that ``setup`` makes from another, kept from being pruned; make it if the cache lacks it.

    The command runs in a sandbox of its own, once for all processes that share the cache. All files are kept, processes
    are not. The caller holds ``image`` meanwhile.

    Raises:
        SandboxStartError: The command failed, with its output, or ran out of time.
        TaskError: The working directory does not exist, or the command needs ids that this user lacks.
    """
    reported = [
        _FORMAT,
        image.digest,
        image.layers,
        setup.command,
        dict(setup.directories),
        setup.workdir,
        limits.has_network,
    ]
    digest = hashlib.sha256(json.dumps(["set-up", *reported]).encode()).hexdigest()
    async with setting_up(timeout_sec):
        while True:
            async with locked(f"image-{digest[:32]}"):
                prepared = await asyncio.to_thread(load_image, digest)
                if prepared is None:
                    prepared = await _make(image, setup, limits, digest)
            if (held := hold_known(prepared)) is not None:
                return prepared, held
            await asyncio.sleep(_PRUNE_PAUSE_SEC)  # it is being pruned at this moment


async def _make(image: Image, setup: Setup, limits: Limits, digest: str) -> Image:
    sandbox = SupervisedSandbox()
    try:
        await sandbox.start(image.directories, limits, setup.directories, is_for_copying=True)
        if setup.workdir not in setup.directories:
            looked = await sandbox.run(CommandSpec(workdir_check(setup.workdir), "0", "/", dict(setup.env)))
            require_check(setup.workdir, looked.return_code)
        for command in (setup.command, _KILL_THE_REST):
            finished = await sandbox.run(CommandSpec(command, "0", setup.workdir, dict(setup.env)))
            printed = f"{finished.stdout.text()}{finished.stderr.text()}"
            require_ids(printed if finished.return_code else "", "setup_command", text=command)
            require_success(finished.return_code, printed)
        async with layers.staging() as folder:
            written = folder / "set-up"
            written.mkdir(mode=0o755)
            await sandbox.copy_written(written)
            high_ids = {*image.high_ids, *await asyncio.to_thread(layers.high_ids_of, written)}
            async with layers.added([written]) as names:
                prepared = replace(
                    image, layers=(*names, *image.layers), digest=digest, high_ids=tuple(sorted(high_ids))
                )
                record = asyncio.to_thread(write_record, prepared, made_for=f"set-up on image {image.digest[:12]}")
                return await shielded(record)
    finally:
        await shielded(sandbox.stop())
