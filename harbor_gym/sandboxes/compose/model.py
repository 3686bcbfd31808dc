"""A Compose project as its sandboxes need it, from what ``docker compose config`` prints; the rest is refused by name.

Source: the Compose specification, and the JSON of ``docker compose config``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from harbor_gym.sandboxes.errors import TaskError, TaskUnsupportedError
from harbor_gym.sandboxes.health import Healthcheck
from harbor_gym.sandboxes.images.recipe import PLATFORM
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import KEPT_CAPABILITIES

MAIN = "main"
"""Harbor's name of the service in which the agent works."""

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
Policy = Literal["no", "always", "on-failure", "unless-stopped"]

_WITHOUT_EFFECT = frozenset((
    "annotations", "attach", "blkio_config", "cpu_count", "cpu_percent", "cpu_rt_period", "cpu_rt_runtime",
    "cpu_shares", "cpuset", "develop", "expose", "init", "labels", "logging", "mem_reservation", "mem_swappiness",
    "memswap_limit", "oom_kill_disable", "oom_score_adj", "ports", "profiles", "pull_policy", "stop_signal",
    "storage_opt",
))  # fmt: skip
"""Keys that change nothing here: docs/guide/sandboxes.md says why of each."""

_READ = frozenset((
    "build", "cap_add", "cap_drop", "command", "configs", "container_name", "cpu_period", "cpu_quota", "cpus",
    "depends_on", "deploy", "entrypoint", "env_file", "environment", "extra_hosts", "healthcheck", "hostname", "image",
    "mem_limit", "network_mode", "networks", "pids_limit", "platform", "privileged", "read_only", "restart", "scale",
    "secrets", "security_opt", "shm_size", "stdin_open", "stop_grace_period", "tmpfs", "tty", "user", "volumes",
    "working_dir",
))  # fmt: skip
_READ_BUILD = frozenset((
    "args", "context", "dockerfile", "dockerfile_inline", "labels", "no_cache", "pull", "tags", "target",
))  # fmt: skip
_READ_DEPLOY = frozenset((
    "labels", "mode", "placement", "replicas", "resources", "restart_policy", "update_config",
))  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_DEFAULT_MODE = 0o1777
_PERIOD_US = 100_000
"""The kernel's own period of a quota of processor time."""
_DEFAULT = "default"
"""The network of the services that declare none."""


@dataclass(frozen=True, slots=True)
class Build:
    """How the image of a service is built."""

    context: Path
    dockerfile: Path | None = None
    inline: str | None = None
    """The Dockerfile's text instead of a file."""

    arguments: tuple[tuple[str, str], ...] = ()
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of a service."""

    kind: Literal["volume", "bind", "tmpfs"]
    target: str
    source: str = ""
    """Name of the volume, or the path on this machine."""

    is_read_only: bool = False
    fills: bool = True
    """Whether a volume that is empty gets what the image has at the target."""

    part: str = ""
    """A path in the volume instead of its root."""

    size_bytes: int = 0
    mode: int = _DEFAULT_MODE
    text: str | None = None
    """The content of a file that no file of this machine has."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A service that another waits for."""

    name: str
    condition: Condition
    is_optional: bool = False
    """Whether it need not have a health check to be waited for."""


@dataclass(frozen=True, slots=True)
class Restart:
    """When a service's command is started again after its end."""

    policy: Policy = "no"
    most: int | None = None
    """How often; None is without limit."""

    def applies(self, status: int, restarts: int) -> bool:
        """Return whether it is started again after an end with ``status`` and so many restarts."""
        if self.policy == "no" or (self.policy == "on-failure" and status == 0):
            return False
        return self.most is None or restarts < self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service. None is the image's own."""

    name: str
    image: str | None = None
    build: Build | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    hostname: str | None = None
    healthcheck: Mapping[str, Any] | None = None
    """The keys that are given."""

    depends_on: tuple[Dependency, ...] = ()
    restart: Restart = Restart()
    networks: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Network → further names of the service in it."""

    shares: str | None = None
    """The service whose network it has instead of one of its own."""

    is_found: bool = True
    """Whether the others find it by its name."""

    extra_hosts: tuple[tuple[str, str], ...] = ()
    """Name and address."""

    mounts: tuple[Mount, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    max_processes: int | None = None
    dropped: tuple[int, ...] = ()
    """Capabilities that its processes lack."""

    no_new_privileges: bool = False
    shm_bytes: int | None = None
    is_read_only: bool = False
    keeps_input: bool = False
    """Whether its standard input stays open."""

    stop_grace_sec: float = 10.0


@dataclass(frozen=True, slots=True)
class Project:
    """The services that start, and the networks between them."""

    services: Mapping[str, Service]
    networks: tuple[str, ...]
    internal: frozenset[str]
    """Those networks that have no way out."""

    @property
    def main(self) -> Service:
        """The agent's service."""
        return self.services[MAIN]

    @property
    def others(self) -> list[Service]:
        """All other services, those first on which others depend."""
        ordered: dict[str, Service] = {}

        def add(service: Service) -> None:
            for dependency in service.depends_on:
                add(self.services[dependency.name])
            ordered.setdefault(service.name, service)

        for service in self.services.values():
            add(service)
        return [service for name, service in ordered.items() if name != MAIN]

    def root(self, service: Service) -> Service:
        """Return the service whose network another has, which may be itself."""
        while service.shares is not None:
            service = self.services[service.shares]
        return service

    def sharing(self) -> Project:
        """Return the project of a task whose network is not public in each phase.

        Harbor's Docker gives the services that declare no network a common one then: they find each other at localhost.
        """
        alike = [service for service in self.services.values() if dict(service.networks) == {_DEFAULT: ()}]
        first = next((service for service in alike if service.name == MAIN), alike[0] if alike else None)
        shared = {
            service.name: replace(service, networks={}, shares=first.name)
            for service in alike
            if first is not None and service is not first
        }
        return replace(self, services={**self.services, **shared})

    def is_to_complete(self, name: str) -> bool:
        """Return whether another service waits for the end of this one."""
        return any(
            (dependency.name, dependency.condition) == (name, "service_completed_successfully")
            for service in self.services.values()
            for dependency in service.depends_on
        )


def project_of(document: Mapping[str, Any], context: Path, *, own_mounts: Sequence[tuple[str, str]] = ()) -> Project:
    """Return the project that a document describes.

    Args:
        document: The output of ``docker compose config --format json``, read.
        context: The task's environment directory, of which files may be mounted.
        own_mounts: Source and target of the trial's log directories, which ``main`` has in any case.

    Raises:
        TaskUnsupportedError: It has something that sandboxes here don't; the message names the service and the key.
        TaskError: Docker would not start it either; the message says why.
    """
    if MAIN not in document["services"]:
        raise TaskError("docker-compose.yaml: the service 'main' does not start: no profile of it is active")
    if document.get("models"):
        raise _refused("the project", "models")
    networks: Mapping[str, Mapping[str, Any] | None] = document.get("networks") or {}
    for name, network in networks.items():
        _check_network(name, network or {})
    for name, volume in (document.get("volumes") or {}).items():
        _check_volume(name, volume or {})
    services = {
        name: _Reader(name, found, context, own_mounts, document).service()
        for name, found in document["services"].items()
    }
    for service in services.values():
        for dependency in service.depends_on:
            if dependency.name not in services:
                raise _refused(f"service {service.name!r}", f"depends_on {dependency.name!r}, which does not start")
        if service.shares is not None and service.shares not in services:
            raise _refused(f"service {service.name!r}", f"network_mode of {service.shares!r}, which does not start")
    internal = frozenset(name for name, network in networks.items() if (network or {}).get("internal"))
    return Project(services, tuple(networks), internal)


def _refused(where: str, what: str, why: str = "") -> TaskUnsupportedError:
    because = f" ({why})" if why else ""
    return TaskUnsupportedError(
        f"docker-compose.yaml: {where}: {what} is not supported without Docker{because}: use --env docker"
    )


def _check_network(name: str, network: Mapping[str, Any]) -> None:
    where = f"network {name!r}"
    if network.get("external"):
        raise _refused(where, "external")
    if network.get("driver") not in (None, "bridge", "default"):
        raise _refused(where, f"driver {network['driver']!r}")
    if (network.get("ipam") or {}).get("config"):
        raise _refused(where, "ipam", "networks have addresses of their own")
    for key in ("driver_opts", "enable_ipv6"):
        if network.get(key):
            raise _refused(where, key)


def _check_volume(name: str, volume: Mapping[str, Any]) -> None:
    where = f"volume {name!r}"
    if volume.get("external"):
        raise _refused(where, "external", "volumes live for one episode")
    if volume.get("driver") not in (None, "local"):
        raise _refused(where, f"driver {volume['driver']!r}")
    if volume.get("driver_opts"):
        raise _refused(where, "driver_opts")


class _Reader:
    """Reads one service."""

    def __init__(
        self,
        name: str,
        found: Mapping[str, Any],
        context: Path,
        own_mounts: Sequence[tuple[str, str]],
        document: Mapping[str, Any],
    ) -> None:
        self._name, self._found, self._context, self._own_mounts = name, found, context, own_mounts
        self._document = document

    def refused(self, what: str, why: str = "") -> TaskUnsupportedError:
        """Return the error for something that this service has."""
        return _refused(f"service {self._name!r}", what, why)

    def _wrong(self, why: str) -> TaskError:
        """Return the error for what Docker refuses as well."""
        return TaskError(f"docker-compose.yaml: service {self._name!r}: {why}")

    def _absolute(self, path: str, key: str) -> str:
        if not path.startswith("/"):
            raise self._wrong(f"{key} {path!r} is not absolute")
        return path

    def service(self) -> Service:
        """Return the service."""
        found = self._found
        for key, value in found.items():
            if value and key not in _READ and key not in _WITHOUT_EFFECT:
                raise self.refused(key)
        self._check_rights()
        limits = self._limits()
        return Service(
            name=self._name,
            image=found.get("image"),
            build=self._build(),
            entrypoint=_words(found.get("entrypoint")),
            command=_words(found.get("command")),
            env={name: value for name, value in (found.get("environment") or {}).items() if value is not None},
            workdir=self._absolute(workdir, "working_dir") if (workdir := found.get("working_dir")) else None,
            user=found.get("user"),
            hostname=found.get("hostname"),
            healthcheck=found.get("healthcheck"),
            depends_on=tuple(
                Dependency(name, wanted.get("condition", "service_started"), not wanted.get("required", True))
                for name, wanted in (found.get("depends_on") or {}).items()
                if wanted.get("required", True) or name in self._document["services"]
            ),
            restart=self._restart(),
            networks=self._networks(),
            shares=self._shares(),
            is_found=self._shares() is None,
            extra_hosts=self._extra_hosts(),
            mounts=tuple(self._mounts()),
            memory_bytes=_size(found.get("mem_limit") or limits.get("memory")) or None,
            cpus=float(found.get("cpus") or limits.get("cpus") or self._quota()) or None,
            max_processes=self._max_processes(limits),
            dropped=self._dropped(),
            no_new_privileges=any(map(_forbids_privileges, found.get("security_opt") or ())),
            shm_bytes=_size(found.get("shm_size")) or None,
            is_read_only=bool(found.get("read_only")),
            keeps_input=bool(found.get("stdin_open")),
            stop_grace_sec=duration_sec(found.get("stop_grace_period") or "10s"),
        )

    def _check_rights(self) -> None:
        found = self._found
        if found.get("privileged"):
            raise self.refused("privileged")
        for capability in found.get("cap_add") or ():
            if _capability(capability) not in _KEPT_NAMES:
                raise self.refused(f"cap_add {capability}")
        for option in found.get("security_opt") or ():
            if not _forbids_privileges(option) and not option.startswith("no-new-privileges"):
                raise self.refused(f"security_opt {option}")
        if found.get("tty") and self._name != MAIN:
            raise self.refused("tty")
        if found.get("platform") not in (None, "linux", PLATFORM["TARGETPLATFORM"]):
            raise self.refused(f"platform {found['platform']!r}", "images are built for this machine")
        if found.get("scale", 1) != 1 or (found.get("deploy") or {}).get("replicas", 1) != 1:
            raise self.refused("scale or deploy.replicas", "each service runs once")

    def _dropped(self) -> tuple[int, ...]:
        dropped = {_capability(name) for name in self._found.get("cap_drop") or ()}
        added = {_capability(name) for name in self._found.get("cap_add") or ()}
        return tuple(
            number
            for name, number in KEPT_CAPABILITIES.items()
            if _capability(name) not in added and dropped & {"ALL", _capability(name)}
        )

    def _build(self) -> Build | None:
        build = self._found.get("build")
        if build is None:
            return None
        for key, value in build.items():
            if value and key not in _READ_BUILD:
                raise self.refused(f"build.{key}")
        context = Path(build.get("context") or self._context)
        if "://" in str(build.get("context")) or not context.is_dir():
            raise self.refused(f"build.context {build.get('context')!r}", "it is no directory of this machine")
        inline = build.get("dockerfile_inline")
        file = build.get("dockerfile")
        return Build(
            context,
            None if inline is not None or file is None else context / file,
            inline,
            tuple((name, value) for name, value in (build.get("args") or {}).items() if value is not None),
            build.get("target"),
        )

    def _restart(self) -> Restart:
        policy, _, most = (self._found.get("restart") or "no").partition(":")
        declared = (self._found.get("deploy") or {}).get("restart_policy")
        if declared and not self._found.get("restart"):
            condition = declared.get("condition") or "no"
            policy = {"none": "no", "any": "always"}.get(condition, condition)
            most = declared.get("max_attempts")
        if policy not in get_args(Policy):
            raise self._wrong(f"no restart policy is called {policy!r}")
        return Restart(policy, int(most or 0) or None)  # pyright: ignore[reportArgumentType]  # it is one of them

    def _networks(self) -> dict[str, tuple[str, ...]]:
        match self._found.get("network_mode"):
            case None:
                pass
            case _:
                return {}
        joined: dict[str, tuple[str, ...]] = {}
        for name, given in (self._found.get("networks") or {}).items():
            for key in (given or {}).keys() - {"aliases", "priority", "gw_priority"}:
                if (given or {})[key]:
                    raise self.refused(f"networks.{name}.{key}", "networks have addresses of their own")
            joined[name] = tuple((given or {}).get("aliases") or ())
        own = self._found.get("container_name")
        return {name: (*aliases, own) if own else aliases for name, aliases in joined.items()}

    def _shares(self) -> str | None:
        match self._found.get("network_mode"):
            case None | "none":
                return None
            case str(mode) if mode.startswith("service:") and self._name != MAIN:
                return mode.removeprefix("service:")
            case mode:
                raise self.refused(f"network_mode {mode!r}")

    def _extra_hosts(self) -> tuple[tuple[str, str], ...]:
        given = self._found.get("extra_hosts") or []
        pairs: list[tuple[str, str]] = []
        for entry in given.items() if isinstance(given, dict) else given:
            name, address = entry if isinstance(entry, tuple) else re.split("[=:]", entry, maxsplit=1)
            for one in address if isinstance(address, list) else [address]:
                if one == "host-gateway":
                    raise self.refused(f"extra_hosts {name}: host-gateway", "this machine can't be reached")
                pairs.append((name, one))
        return tuple(pairs)

    def _limits(self) -> Mapping[str, Any]:
        deploy = self._found.get("deploy") or {}
        for key, value in deploy.items():
            if value and key not in _READ_DEPLOY:
                raise self.refused(f"deploy.{key}")
        resources = deploy.get("resources") or {}
        if (resources.get("reservations") or {}).get("devices"):
            raise self.refused("deploy.resources.reservations.devices")
        return resources.get("limits") or {}

    def _quota(self) -> float:
        return max(0, int(self._found.get("cpu_quota") or 0)) / int(self._found.get("cpu_period") or _PERIOD_US)

    def _max_processes(self, limits: Mapping[str, Any]) -> int | None:
        given = self._found.get("pids_limit") or limits.get("pids") or 0
        return given if given > 0 else None

    def _mounts(self) -> list[Mount]:
        mounts: list[Mount] = []
        for found in self._found.get("volumes") or ():
            read: Callable[[Mapping[str, Any]], Mount | None] | None = {
                "volume": self._volume, "bind": self._bind, "tmpfs": self._tmpfs
            }.get(found["type"])  # fmt: skip
            if read is None:
                raise self.refused(f"volumes: type {found['type']!r}")
            if (mount := read(found)) is not None:
                mounts.append(mount)
        for entry in self._found.get("tmpfs") or ():
            target, _, options = entry.partition(":")
            mounts.append(self._memory(target, options))
        for mount in mounts:
            self._absolute(mount.target, "the place of a mount")
        return [*mounts, *self._files("secrets", "/run/secrets/"), *self._files("configs", "/")]

    def _files(self, kind: str, folder: str) -> Iterator[Mount]:
        """Yield the files of secrets or configs."""
        for given in self._found.get(kind) or ():
            name = given["source"]
            declared = self._document[kind][name]
            what = f"{kind} {name!r}"
            for key in ("uid", "gid", "mode"):
                if given.get(key):
                    raise self.refused(f"{what}: {key}")
            target = posixpath.join(folder, given.get("target") or name)
            if declared.get("file"):
                yield Mount("bind", target, str(self._inside(Path(declared["file"]), what)), is_read_only=True)
            elif declared.get("content") is not None:
                yield Mount("bind", target, what, is_read_only=True, text=declared["content"])
            else:
                raise self.refused(f"{what} without a file or content")

    def _inside(self, source: Path, what: str) -> Path:
        """Return a path of the environment directory, without links."""
        inside = source.resolve()
        if not inside.is_relative_to(self._context.resolve()):
            raise self.refused(f"{what}: {source}", "only files of the task's environment directory can be mounted")
        if not inside.exists():
            raise self.refused(f"{what}: {source}", "it does not exist")
        return inside

    def _volume(self, found: Mapping[str, Any]) -> Mount:
        further = found.get("volume") or {}
        return Mount(
            "volume",
            found["target"],
            found.get("source") or f"{self._name}.{found['target'].strip('/').replace('/', '.')}",
            is_read_only=bool(found.get("read_only")),
            fills=not further.get("nocopy"),
            part=(further.get("subpath") or "").strip("/"),
        )

    def _bind(self, found: Mapping[str, Any]) -> Mount | None:
        source, target = Path(found["source"]), found["target"]
        if self._name == MAIN and (str(source), target) in self._own_mounts:
            return None
        is_made = (found.get("bind") or {}).get("create_host_path") and not found.get("read_only")
        if is_made and not source.exists() and source.parent.resolve() == self._context.resolve():
            return Mount("volume", target, str(source))  # Docker makes the directory
        return Mount("bind", target, str(self._inside(source, "volumes")), is_read_only=bool(found.get("read_only")))

    def _tmpfs(self, found: Mapping[str, Any]) -> Mount:
        options = found.get("tmpfs") or {}
        if found.get("read_only"):
            raise self.refused(f"tmpfs {found['target']}: read_only")
        return Mount(
            "tmpfs", found["target"], size_bytes=_size(options.get("size")), mode=options.get("mode") or _DEFAULT_MODE
        )

    def _memory(self, target: str, text: str) -> Mount:
        options = {name: value for name, _, value in (word.partition("=") for word in text.split(",")) if name}
        for name in options.keys() - {"size", "mode", "rw", "nosuid", "nodev", "noexec"}:
            raise self.refused(f"tmpfs {target}: option {name}")
        if "size" in options and not _SIZE.fullmatch(options["size"]):
            raise self.refused(f"tmpfs {target}: size {options['size']}")
        return Mount("tmpfs", target, size_bytes=_size(options.get("size")), mode=int(options.get("mode") or "1777", 8))


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def _forbids_privileges(option: str) -> bool:
    return option.replace("=", ":") in ("no-new-privileges", "no-new-privileges:true")


_KEPT_NAMES = frozenset(map(_capability, KEPT_CAPABILITIES))


def merged_healthcheck(own: Mapping[str, Any] | None, of_image: Healthcheck | None) -> Healthcheck | None:
    """Return the check of a service: each key that it gives replaces the image's.

    Args:
        own: The keys of its ``healthcheck``.
        of_image: The image's HEALTHCHECK.
    """
    given = own or {}
    test = given.get("test")
    if given.get("disable") or (test and test[0] == "NONE"):
        return None
    if test:
        argv = tuple(test[1:]) if test[0] == "CMD" else ("/bin/sh", "-c", *test[1:])
    elif of_image is not None:
        argv = of_image.argv
    else:
        return None
    like = of_image or Healthcheck(argv)

    def seconds(key: str, otherwise: float) -> float:
        return duration_sec(given.get(key) or "") or otherwise

    return Healthcheck(
        argv,
        seconds("interval", like.interval_sec),
        seconds("timeout", like.timeout_sec),
        seconds("start_period", like.start_period_sec),
        seconds("start_interval", like.start_interval_sec),
        given.get("retries") or like.retries,
    )


def duration_sec(text: str) -> float:
    """Return the seconds of a duration such as ``1m30s``."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _size(value: str | int | None) -> int:
    """Return the bytes of a size, 0 if there is none."""
    if value is None:
        return 0
    found = _SIZE.fullmatch(str(value))
    return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ") if found else 0


def _words(given: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)
