"""Read a task's Compose files by Compose itself, whose ``config`` needs no daemon: interpolation, merging, ``extends``,
profiles and ``env_file`` are its own.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.environments.docker import COMPOSE_BUILD_PATH, COMPOSE_PREBUILT_PATH, ENV_COMPOSE_NAME
from harbor.environments.docker.compose_env import ComposeInfraEnvVars, legacy_log_mount_env_vars
from harbor.models.trial.config import ServiceVolumeConfig

from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.processes import ask, tool_environment
from harbor_gym.sandboxes.compose.model import MAIN, Project, project_of
from harbor_gym.sandboxes.compose.readings import Key, reading_key
from harbor_gym.sandboxes.errors import SandboxStartError, TaskError
from harbor_gym.sandboxes.tools import TIMED_OUT, find_program, run_tool

_PACKAGE = "docker-compose-v2 (Ubuntu), docker-compose (Debian 13) or docker-compose-plugin (Docker's own packages)"
_PLUGIN_FOLDERS = (
    "~/.docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
"""Where Docker's client looks; the plugin runs by itself, too."""
_LEAST_MAJOR = 2
_TIMEOUT_SEC = 60.0


@functools.cache
def compose_program() -> str | None:
    """Return the path of Compose, version 2 or later; None if this machine has none."""
    candidates = [find_program("docker-compose"), *(f"{folder}/docker-compose" for folder in _PLUGIN_FOLDERS)]
    for candidate in candidates:
        path = str(Path(candidate or "").expanduser())
        if candidate and os.access(path, os.X_OK) and _major(path) >= _LEAST_MAJOR:
            return path
    return None


def require_compose() -> str:
    """Return the path of Compose.

    Raises:
        MissingDependencyError: There is none.
    """
    if (path := compose_program()) is None:
        raise MissingDependencyError(
            "a task's docker-compose.yaml is read with Compose 2, without a daemon: apt-get install "
            f"{_PACKAGE}, or --env docker"
        )
    return path


async def read_project(
    context: Path,
    extra: Sequence[Path],
    *,
    name: str,
    docker_image: str | None,
    task_env: Mapping[str, str],
    main_env: Mapping[str, str],
    mounts: Sequence[ServiceVolumeConfig],
) -> Project:
    """Return a task's project, of the files and variables that Harbor's Docker gives to Compose.

    Args:
        context: The task's environment directory.
        extra: Further Compose files of the run.
        name: The project's name.
        docker_image: The prebuilt image of ``main``; None if it is built.
        task_env: The task's variables, which the files may use.
        main_env: The variables of ``main``.
        mounts: The trial's log directories.

    Raises:
        MissingDependencyError: Compose is not installed.
        TaskError: The files are no Compose project.
        TaskUnsupportedError: They have something that sandboxes here don't; the message names it.
    """
    own = context / COMPOSE_FILE_NAME
    files = [COMPOSE_BUILD_PATH if docker_image is None else COMPOSE_PREBUILT_PATH, *([own] if own.exists() else [])]
    place = Path(os.path.realpath(context))  # noqa: ASYNC240  # a few links at most
    given = ComposeInfraEnvVars(main_image_name=MAIN, context_dir=str(place), prebuilt_image_name=docker_image)
    environment = {**task_env, **given.to_env_dict(), **legacy_log_mount_env_vars([*mounts], host_value="source")}
    overlays = {ENV_COMPOSE_NAME: {"services": {MAIN: {"environment": dict(main_env)}}}}
    document = await read_document(
        [*files, *extra], overlays, context=place, name=_project_name(name), environment=environment
    )
    logs = [(mount["source"], mount["target"]) for mount in mounts if mount["type"] == "bind"]
    return project_of(document, place, own_mounts=logs)


def _project_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).lstrip("_-") or "project"


async def read_document(
    files: Sequence[Path], overlays: Mapping[str, Any], *, context: Path, name: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return what Compose makes of some files.

    Args:
        files: Those of Harbor and of the task, in the order in which they are merged.
        overlays: Further documents, merged after them: file name → document.
        context: The directory to which paths are relative.
        name: The project's name.
        environment: The variables that the files may use.

    Raises:
        MissingDependencyError: Compose is not installed.
        TaskError: They are no Compose project; Compose's message.
    """
    program = require_compose()
    texts = {file: json.dumps(document) for file, document in overlays.items()}
    env = tool_environment(environment)
    key = reading_key(program, files, tuple(texts.values()), context=context, name=name, env=env)
    if key is None or key not in _known:
        found = await _ask_compose(program, files, texts, context=context, name=name, environment=environment)
        if key is None:
            return json.loads(found)
        while len(_known) >= _KEPT:
            del _known[next(iter(_known))]
        _known[key] = found
    return json.loads(_known[key])


_known: dict[Key, str] = {}
"""The last readings."""
_KEPT = 64


async def _ask_compose(
    program: str,
    files: Sequence[Path],
    overlays: Mapping[str, str],
    *,
    context: Path,
    name: str,
    environment: Mapping[str, str],
) -> str:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("compose")) as folder:
        further = [Path(folder) / file for file in overlays]
        for path in further:
            path.write_text(overlays[path.name], encoding="utf-8")
        output = Path(folder) / "project.json"
        argv = [program, "--project-name", name, "--project-directory", str(context)]
        for path in (*files, *further):
            argv += ["-f", str(path)]
        argv += ["config", "--format", "json", "--output", str(output)]
        code, said = await run_tool(*argv, timeout_sec=_TIMEOUT_SEC, environment=environment)
        if code == TIMED_OUT:
            raise SandboxStartError(f"reading the task's docker-compose.yaml: {said}")
        if code != 0:
            raise TaskError(f"{context}/docker-compose.yaml can't be read: {said.strip()}")
        # Compose writes a dollar sign as two, for a reader that replaces variables.
        return output.read_text(encoding="utf-8").replace("$$", "$")


def _major(path: str) -> int:
    shown = ask(path, "version", "--short", timeout_sec=10).stdout.strip().removeprefix("v")
    major = shown.split(".")[0]
    return int(major) if major.isdecimal() else 0
