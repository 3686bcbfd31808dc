"""What one service of a project is, as a sandbox: its image's settings, its place among the others, its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harbor_gym.sandboxes.compose.model import Build, Project, Service, merged_healthcheck
from harbor_gym.sandboxes.errors import TaskUnsupportedError
from harbor_gym.sandboxes.image_settings import ImageSettings
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.images.chosen import Recipe
from harbor_gym.sandboxes.supervisor.options import NamespacedOptions
from harbor_gym.sandboxes.supervisor.program.messages import CgroupLimits, SupervisorConfig

PREFIX_BITS = 16
_FIRST_NETWORK, _MOST_NETWORKS = 18, 14
"""172.18.0.0/16 to 172.31.0.0/16, which Docker takes first as well."""
_FIRST_HOST = 2
_IDLE = (("sleep", "infinity"), ("sleep", "inf"), ("tail", "-f", "/dev/null"))
"""Commands that keep a container alive, which a sandbox does by itself."""


@dataclass(frozen=True, slots=True)
class Member:
    """One service among those of its project."""

    project: Project
    service: Service

    @property
    def number(self) -> int:
        """Its number in the project, from 0."""
        return list(self.project.services).index(self.service.name)

    @property
    def has_way_out(self) -> bool:
        """Whether it is in a network that leads anywhere else."""
        return bool(self.service.networks.keys() - self.project.internal)

    @property
    def source(self) -> ImageSource:
        """The source of its image: its build, that of another service by the image's name, or a name."""
        service, build = self.service, self.service.build
        if build is None and service.image is not None:
            twins = (other.build for other in self.project.services.values() if other.image == service.image)
            build = next((found for found in twins if found is not None), None)
        if build is not None:
            return ImageSource(build.context, recipe=_recipe(build))
        if service.image is None:
            raise TaskUnsupportedError(f"docker-compose.yaml: service {service.name!r} has neither build nor image")
        return ImageSource(Path(), docker_image=service.image)

    def is_plain(self, environment_dir: Path, docker_image: str | None) -> bool:
        """Return whether its image is the one that a task of this directory, or image, has without a Compose file."""
        build = self.service.build
        if build is None:
            return docker_image is not None and self.service.image == docker_image
        return build.context.resolve() == environment_dir.resolve() and _recipe(build) is None

    @property
    def addresses(self) -> list[tuple[int, str]]:
        """Number of each of its networks, and its address there."""
        names = [name for name in self.project.networks if name in self.service.networks]
        return [(self.project.networks.index(name), self.address_in(name)) for name in names]

    def address_in(self, network: str) -> str:
        """Return its address in a network."""
        number = self.project.networks.index(network)
        if number >= _MOST_NETWORKS:
            raise TaskUnsupportedError(
                f"docker-compose.yaml: more than {_MOST_NETWORKS} networks are not supported without Docker: "
                "use --env docker"
            )
        host = self.number + _FIRST_HOST
        return f"172.{_FIRST_NETWORK + number}.{host >> 8}.{host & 255}"

    def dressed[Settings: ImageSettings](self, image: Settings) -> Settings:
        """Return an image with the settings of the service in place of its own."""
        service = self.service
        keeps_command = not service.entrypoint and not service.command
        return replace(
            image,
            env={**image.env, **service.env},
            workdir=service.workdir or image.workdir,
            user=service.user or image.user,
            entrypoint=image.entrypoint if service.entrypoint is None else service.entrypoint,
            command=image.command if keeps_command else service.command or (),
            healthcheck=merged_healthcheck(service.healthcheck, image.healthcheck),
        )

    def placed(self, config: SupervisorConfig, host_name: str) -> SupervisorConfig:
        """Return a sandbox's configuration with its names and those of the services that it reaches."""
        name = self.service.hostname or host_name
        etc = {"hosts": self._hosts(name), "hostname": f"{name}\n"}
        if self.service.shares is not None and Member(self.project, self.project.root(self.service)).has_way_out:
            etc["resolv.conf"] = f"nameserver {config.name_server}\n"
        devices = tuple(f"eth{place}" for place in range(len(self.service.networks)))
        return config._replace(host_name=name, etc={**config.etc, **etc}, devices=devices)

    def limited(self, limits: CgroupLimits) -> CgroupLimits:
        """Return limits with those of the service in place."""
        service = self.service
        return limits._replace(
            memory_bytes=service.memory_bytes or limits.memory_bytes,
            cpus=service.cpus or limits.cpus,
            max_processes=service.max_processes or limits.max_processes,
        )

    def _hosts(self, own: str) -> str:
        lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
        lines += [f"{address}\t{name}" for name, address in self.service.extra_hosts]
        here = self.project.root(self.service)
        for other in self.project.services.values():
            if other is not self.service and not other.is_found:
                continue
            there = self.project.root(other)
            host = own if other is self.service else other.hostname
            if there is here and not (other is self.service and self.service.networks):
                found = {"": "127.0.0.1"}
            else:
                common = [name for name in self.project.networks if name in here.networks and name in there.networks]
                found = {name: Member(self.project, there).address_in(name) for name in common}
            for network, address in found.items():
                names = [other.name, *other.networks.get(network, ()), *([host] if host else [])]
                lines.append(f"{address}\t{' '.join(dict.fromkeys(names))}")
        return "\n".join(lines) + "\n"


def is_idle(argv: Sequence[str]) -> bool:
    """Return whether a command does nothing but run on, as Harbor's own for ``main``."""
    words = tuple(argv)
    match words:
        case [shell, "-c", text] if shell.rsplit("/", 1)[-1] in ("sh", "bash"):
            words = tuple(text.removeprefix("exec ").split())
        case _:
            pass
    return words in _IDLE


def require_options(options: NamespacedOptions, kind: str) -> None:
    """Check that a sandbox of these options and of this kind, on this machine, can have services beside it.

    Raises:
        TaskUnsupportedError: It can't; the message names the option.
    """
    if options.network == "machine":
        why = "the sandbox option network='machine' gives them no network of their own: set it to 'task'"
        raise no_services(kind, why)


def no_services(kind: str, why: str) -> TaskUnsupportedError:
    """Return the error for a sandbox of a kind that can't have services beside it."""
    return TaskUnsupportedError(
        f"docker-compose.yaml: {kind} sandboxes can't run its services: {why}, or use --env docker"
    )


def _recipe(build: Build) -> Recipe | None:
    """Return how an image is built; None for its context's own Dockerfile alone."""
    own = build.context / "Dockerfile"
    file = own if build.dockerfile is None and build.inline is None else build.dockerfile
    recipe = Recipe(file, build.inline, build.arguments, build.target)
    return None if recipe == Recipe(own) else recipe
