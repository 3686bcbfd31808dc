"""Run a set-up command once for many sandboxes: the files that it wrote become a layer of an image."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

from harbor_gym._runtime.cache import Hold, locked
from harbor_gym._runtime.shielded import shielded
from harbor_gym.sandboxes.declared import require_check, workdir_check
from harbor_gym.sandboxes.images import layers
from harbor_gym.sandboxes.images.build import Image, hold_known, load_image, write_record
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.setup_command import require_success, setting_up
from harbor_gym.sandboxes.supervisor.client import SupervisedSandbox
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec, SupervisorConfig

_FORMAT = 3
_PRUNE_PAUSE_SEC = 0.05
_KILL_THE_REST = "kill -9 -1 2>/dev/null; while kill -0 -1 2>/dev/null; do :; done; true"
"""Processes that the command left running must not write while its files are copied; later sandboxes lack them."""


async def hold_set_up(
    image: Image, command: CommandSpec, config: SupervisorConfig, *, timeout_sec: float
) -> tuple[Image, Hold]:
    """Return the image that a command makes from another, kept from being pruned; make it if the cache lacks it.

    The command runs in a sandbox of its own, once for all processes that share the cache. All files are kept, processes
    are not. The caller holds ``image`` meanwhile.

    Args:
        image: The image.
        command: Root's, with the image's environment alone: the secrets of a task's or a trial's would be kept in the
            cache.
        config: The sandbox on that image. The command can rely on its directories, and every sandbox has them.
        timeout_sec: What it all may take.

    Raises:
        SandboxStartError: The command failed, with its output, or ran out of time.
        TaskError: The working directory does not exist, or the command needs ids that this user lacks.
    """
    reported = [
        _FORMAT,
        image.digest,
        image.layers,
        command.command,
        config.directories,
        command.cwd,
        config.has_network,
    ]
    digest = hashlib.sha256(json.dumps(["set-up", *reported]).encode()).hexdigest()
    async with setting_up(timeout_sec):
        while True:
            async with locked(f"image-{digest[:32]}"):
                prepared = await asyncio.to_thread(load_image, digest)
                if prepared is None:
                    prepared = await _make(image, command, config, digest)
            if (held := hold_known(prepared)) is not None:
                return prepared, held
            await asyncio.sleep(_PRUNE_PAUSE_SEC)  # it is being pruned at this moment


async def _make(image: Image, command: CommandSpec, config: SupervisorConfig, digest: str) -> Image:
    sandbox = SupervisedSandbox()
    try:
        await sandbox.start(config)
        if command.cwd not in config.directories:
            looked = await sandbox.run(command._replace(command=workdir_check(command.cwd), cwd="/"))
            require_check(command.cwd, looked.return_code)
        for text in (command.command, _KILL_THE_REST):
            finished = await sandbox.run(command._replace(command=text))
            printed = f"{finished.stdout.text()}{finished.stderr.text()}"
            require_ids(printed if finished.return_code else "", "setup_command", text=text)
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
