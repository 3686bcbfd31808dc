"""Pull and push SIF files. Credentials come from the environment, as Apptainer reads them itself.

``APPTAINER_DOCKER_USERNAME`` and ``APPTAINER_DOCKER_PASSWORD`` (or those beginning with ``SINGULARITY_``), else what
``apptainer registry login`` has stored. They appear in no argument and no message.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.sandboxes.apptainer.programs import find_runtime
from harbor_gym.sandboxes.apptainer.sif.build import partial_folder
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.tools import contained, run_tool, tail

_REFERENCE = re.compile(r"(oras|docker|library|https?)://.+")
_PULL_TIMEOUT_SEC = 3600.0
_PLAIN_HTTP = re.compile(r"(oras|docker)://(localhost|127\.0\.0\.1|\[::1\])[:/]")
"""Registries on this machine itself, which have no certificate."""


def is_reference(name: str) -> bool:
    """Return whether an image's name is one that Apptainer pulls by itself (``oras://``, ``docker://``, …)."""
    return _REFERENCE.fullmatch(name) is not None


async def pull(reference: str, target: Path) -> None:
    """Fetch an image as a SIF file, converted if the registry has its layers.

    Args:
        reference: A name for which :func:`is_reference` is true.
        target: The file, which appears whole or not at all; its folder exists.

    Raises:
        MissingDependencyError: There is no Apptainer.
        SandboxStartError: The registry refuses, can't be reached, or has no such image.
    """
    runtime = find_runtime()
    async with partial_folder(target.parent) as folder:
        file = folder / "image.sif"
        options = ("--disable-cache", "--force", *_transport(reference))
        code, output = await _apptainer(runtime, "pull", *options, str(file), reference)
        if code != 0:
            raise SandboxStartError(f"{reference} can't be pulled: {tail(output)}")
        await asyncio.to_thread(file.replace, target)


async def push(file: Path, reference: str) -> None:
    """Store a SIF file in a registry.

    Args:
        file: The file.
        reference: ``oras://HOST/PATH:TAG``.

    Raises:
        MissingDependencyError: There is no Apptainer.
        SandboxStartError: The registry refuses or can't be reached.
    """
    code, output = await _apptainer(
        find_runtime(), "push", "--allow-unsigned", *_transport(reference), str(file), reference
    )
    if code != 0:
        raise SandboxStartError(f"{file} can't be pushed to {reference}: {tail(output)}")


def _transport(reference: str) -> tuple[str, ...]:
    return ("--no-https",) if _PLAIN_HTTP.match(reference) else ()


async def _apptainer(*argv: str) -> tuple[int, str]:
    own = cache_dir() / "apptainer"
    await asyncio.to_thread(own.mkdir, exist_ok=True)
    async with partial_folder(own) as scratch:
        folders = {"APPTAINER_CACHEDIR": own / "cache", "APPTAINER_TMPDIR": scratch}
        environment = {name: str(path) for name, path in folders.items() if not _is_set(name)}
        # The user stays the same: Apptainer looks for stored credentials in that user's home directory.
        prefix = contained(("--user", "--map-current-user") if is_rootless() else ())
        return await run_tool(*prefix, *argv, timeout_sec=_PULL_TIMEOUT_SEC, environment=environment)


def _is_set(name: str) -> bool:
    """Return whether the caller chose a folder. Apptainer's own are in the home directory, small on clusters."""
    return name in os.environ or name.replace("APPTAINER", "SINGULARITY") in os.environ
