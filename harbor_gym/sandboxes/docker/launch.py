"""Parts of a sandbox's start in Docker: known images, and the reasons of a failed start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import ExecResult

from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.declared import no_account
from harbor_gym.sandboxes.docker import engine
from harbor_gym.sandboxes.docker.engine import MAIN, docker
from harbor_gym.sandboxes.docker.setup import ImageInfo, inspect_image
from harbor_gym.sandboxes.errors import SandboxStartError, TaskError
from harbor_gym.sandboxes.health import healthcheck_of, unhealthy

_COMMAND_END_SEC = 5.0
_NO_ACCOUNT = re.compile(r"unable to find (?:user|group) ([^:\n]+):[^\n]*")
"""Docker's error for a USER that is not in the image. Source: github.com/moby/sys, user."""
_OUT_OF_RANGE = re.compile(r"uids and gids must be in range [0-9-]+")
"""Its error for one that no image can have."""
_COPY_TIMEOUT_SEC = 600.0
_PULL_TIMEOUT_SEC = 600.0

BUILT_IMAGES: dict[str, ImageInfo] = {}
"""Images that this process has built, by name. A removed one is noticed when a container is made from it."""


async def find_image(name: str, *, pulls: bool) -> ImageInfo | None:
    """Look an image up, with ``pulls`` after a pull if it is missing; None if there is still none.

    Raises:
        SandboxStartError: Docker does not answer.
    """
    look = BUILT_IMAGES.get(name) or await inspect_image(name)
    if look is None and pulls:
        with ticking(f"pulling {name}", delay_sec=SLOW_SEC):
            await docker("pull", name, timeout_sec=_PULL_TIMEOUT_SEC)  # `up` will report a failure
        look = await inspect_image(name)
    return look


async def running_container(project: str) -> str:
    """Return the id of a project's main container.

    Raises:
        SandboxStartError: It does not run; the message has its last lines of output.
    """
    running = await engine.containers_of(project, service=MAIN, is_running=True)
    if len(running) == 1:
        return running[0]
    known = await engine.containers_of(project, service=MAIN)
    answer = (await docker("logs", "--tail", "20", known[0]))[1].strip() if known else "there is none"
    raise SandboxStartError(f"its main container does not run: {answer}")


async def require_image(image: str, environment_dir: Path, refusal: Exception) -> None:
    """Raise an error with a hint if a prebuilt image is missing and there is a Dockerfile beside it."""
    if (instead := dockerfile.alternative(environment_dir)) and await inspect_image(image) is None:
        answer = " ".join(str(refusal).split())
        raise SandboxStartError(f"image {image!r} is not available ({answer}). {instead}") from refusal


def require_account(refusal: Exception) -> None:
    """Raise a TaskError instead if Docker found no account for the image's USER."""
    if (found := _NO_ACCOUNT.search(str(refusal))) is not None:
        raise no_account(found[1], found[0]) from refusal
    if (found := _OUT_OF_RANGE.search(str(refusal))) is not None:
        raise TaskError(f"the USER of the task's image can't be used ({found[0]}): give it a lower id") from refusal


async def require_health(project: str, refusal: Exception) -> None:
    """Raise a TaskError instead if the main container runs, and its health check fails."""
    for container in await engine.containers_of(project, service=MAIN, is_running=True):
        _, shown = await docker("inspect", container)
        found: dict[str, Any] = json.loads(shown)[0]
        health: dict[str, Any] = found["State"].get("Health") or {}
        if health.get("Status") != "unhealthy":
            continue
        _, shown = await docker("image", "inspect", found["Image"])  # a container's configuration has no SHELL
        shell = json.loads(shown)[0]["Config"].get("Shell")
        declared, last = healthcheck_of({**found["Config"], "Shell": shell}), health["Log"][-1]
        if declared is not None:
            raise unhealthy(declared, health["FailingStreak"], last["ExitCode"], last["Output"]) from refusal


async def end_client(process: asyncio.subprocess.Process) -> None:
    """End an abandoned client of Docker, and read its output to the end."""
    for end in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        end()
        with contextlib.suppress(TimeoutError):
            # Reads to the end and closes the pipes, which waiting alone does not.
            await asyncio.wait_for(process.communicate(), _COMMAND_END_SEC)


async def copy_in(container: str, source: str, target: str, *, check: bool) -> ExecResult:
    """Do as Compose's ``cp`` into a container, and make the target's folder if it is missing."""
    copy = ("cp", source, f"{container}:{target}")
    code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
    if code != 0 and await asyncio.to_thread(os.path.exists, source):
        folder = target if source.endswith("/.") else str(PurePosixPath(target).parent)
        await docker("exec", "--user", "0", container, "mkdir", "-p", "--", folder)
        code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
    if check and code != 0:
        raise RuntimeError(f"docker cp {source} {target} failed: {output.strip()}")
    return ExecResult(stdout=output, stderr=None, return_code=code)
