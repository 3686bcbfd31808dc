"""The containers, networks and volumes of one Compose project, and their guaranteed removal."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.labels import PROJECT_LABEL, REMOVALS, labels, removal
from harbor_gym.sandboxes.tools import run_tool

MAIN = "main"
STOP_GRACE_SEC = 1
IDLE = ("sh", "-c", "sleep infinity")
"""The main container's command. Source: Harbor's docker-compose-build.yaml."""

_COMMAND_TIMEOUT_SEC = 60.0
_SERVICE_LABEL = "com.docker.compose.service"
_HARBORS_OWN = "harbor-docker-"
"""How Harbor names a service of its own."""
_KEPT_LINES, _KEPT_CHARACTERS = 1000, 10 << 20
"""Of a service's output."""
_SETTLE_POLL_SEC = 0.1
_SOCKETS = {"socket_buffers_end_at_the_sandboxs_own_limit": "Docker sets no bound of socket buffers on cgroup v1"}
DAEMON_LIMITS: Mapping[str, str] = {
    "open_files_end_at_the_processs_own_limit": "the daemon's own limit holds (its setting default-ulimits)",
    **({} if Path("/sys/fs/cgroup/cgroup.controllers").exists() else _SOCKETS),
}
"""Behaviours of sandboxes that do not hold under a daemon's default settings → why."""


async def docker(*words: str, timeout_sec: float = _COMMAND_TIMEOUT_SEC) -> tuple[int, str]:
    """Run the Docker client; return its exit status and output."""
    return await run_tool("docker", *words, timeout_sec=timeout_sec)


# --- the project -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """One object of a project that Docker still has."""

    kind: str
    """``container``, ``network`` or ``volume``."""

    name: str


_LISTINGS = {
    "container": ("ps", "--all", "--quiet"),
    "network": ("network", "ls", "--quiet"),
    "volume": ("volume", "ls", "--quiet"),
}


async def containers_of(project: str, *, service: str | None = None, is_running: bool = False) -> list[str]:
    """Return the ids of a project's containers, stopped ones too unless ``is_running``."""
    filters = ["--filter", f"label={PROJECT_LABEL}={project}"]
    if service is not None:
        filters += ["--filter", f"label={_SERVICE_LABEL}={service}"]
    everything = [] if is_running else ["--all"]
    _, output = await docker("ps", *everything, "--quiet", "--no-trunc", *filters)
    return output.split()


async def keep_output(project: str, folder: Path) -> None:
    """Write the last lines of each of a project's services beside ``main`` to a folder, as ``NAME.log``."""
    listed = ("ps", "--all", "--filter", f"label={PROJECT_LABEL}={project}", "--format")
    _, output = await docker(*listed, f'{{{{.ID}}}} {{{{.Label "{_SERVICE_LABEL}"}}}}')
    for container, name in (line.split() for line in output.splitlines() if len(line.split()) == 2):
        if name == MAIN or name.startswith(_HARBORS_OWN):
            continue
        code, printed = await docker("logs", "--tail", str(_KEPT_LINES), container)
        if code == 0:
            await asyncio.to_thread(_write, folder / f"{name}.log", printed[-_KEPT_CHARACTERS:])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


async def left_of(project: str, kinds: Iterable[str]) -> list[Left]:
    """Return the objects of a project that Docker still has.

    Raises:
        SandboxStartError: Docker does not answer.
    """
    found: list[Left] = []
    for kind in kinds:
        code, output = await docker(*_LISTINGS[kind], "--filter", f"label={PROJECT_LABEL}={project}")
        if code != 0:
            raise SandboxStartError(f"docker can't list the leftovers of {project}: {output.strip()}")
        found += [Left(kind, name) for name in output.split()]
    return found


async def remove(things: Iterable[Left]) -> list[str]:
    """Remove objects, containers first; return Docker's message for each that it did not remove."""
    refusals: list[str] = []
    for thing in sorted(things, key=lambda item: list(REMOVALS).index(item.kind)):
        code, output = await docker(*removal(thing.kind, thing.name))
        if code != 0:
            refusals.append(f"{thing.kind} {thing.name}: {' '.join(output.split())}")
    return refusals


async def remove_all(project: str, kinds: Iterable[str], *, settle_sec: float) -> list[str]:
    """Remove all objects of a project; return Docker's message for each that it refused to remove.

    Args:
        project: The project's name.
        kinds: Kinds of objects, as in :class:`Left`.
        settle_sec: Seconds in which to look again for objects that Docker is still making.

    Raises:
        SandboxStartError: Docker does not answer.
    """
    ending = time.monotonic() + settle_sec
    while True:
        refusals = await remove(await left_of(project, kinds))
        if refusals and await left_of(project, kinds):
            return refusals
        if time.monotonic() >= ending:
            return []
        await asyncio.sleep(_SETTLE_POLL_SEC)


# --- the overlay -----------------------------------------------------------------------------------------------------


class _ComposeLoader(yaml.SafeLoader):
    """Reads what Compose's own tags, ``!reset`` and ``!override``, are before."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> object:
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


_ComposeLoader.add_multi_constructor("!", _untagged)


def own_services(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the services, networks and volumes in Compose files: section → name → definition.

    Definitions that a file includes or extends from others are not seen.
    """
    found: dict[str, dict[str, Any]] = {"services": {}, "networks": {}, "volumes": {}}
    for path in paths:
        document = yaml.load(path.read_text(encoding="utf-8"), _ComposeLoader)
        for section, known in found.items():
            entries = document.get(section) if isinstance(document, dict) else None
            if isinstance(entries, dict):
                known.update({str(name): entry or {} for name, entry in entries.items()})
    return found


def overlay(declared: Mapping[str, Mapping[str, Any]], main: Mapping[str, Any], networks: Mapping[str, Any]) -> str:
    """Return a Compose file that labels all objects of a project as ours and adds the settings of ``main``.

    Args:
        declared: The task's own definitions, as :func:`own_services` returns them.
        main: Settings of the main service.
        networks: Definitions of further networks, as they are.
    """
    services: dict[str, Any] = {name: {"labels": labels()} for name in declared["services"]}
    # An init process takes SIGTERM, which `sleep infinity` as PID 1 ignores.
    services[MAIN] = {"labels": labels(), "init": True, "stop_grace_period": f"{STOP_GRACE_SEC}s", **main}
    document: dict[str, Any] = {"services": services}
    for section, extra in (("networks", networks), ("volumes", {})):
        own = {name: {"labels": labels()} for name, entry in declared[section].items() if not _is_external(entry)}
        if entries := {**own, **extra}:
            document[section] = entries
    return json.dumps(document, indent=2)


def _is_external(entry: object) -> bool:
    return isinstance(entry, dict) and bool(entry.get("external"))  # pyright: ignore[reportUnknownVariableType]
