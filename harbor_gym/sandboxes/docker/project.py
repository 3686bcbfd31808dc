"""The networks, labels, mounts and resources of a task's Docker project, for Compose or for one container."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.environments.docker import ENV_COMPOSE_NAME, write_env_compose_file, write_mounts_compose_file
from harbor.environments.docker.docker import DockerEnvironment as HarborDockerEnvironment
from harbor.environments.docker.docker import (
    _sanitize_docker_compose_project_name,  # pyright: ignore[reportPrivateUsage]  # nothing public names the project
)
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode, ServiceVolumeConfig

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.errors import SandboxError, SandboxStartError
from harbor_gym.sandboxes.docker import egress
from harbor_gym.sandboxes.docker import engine as engine
from harbor_gym.sandboxes.docker.engine import docker
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
from harbor_gym.sandboxes.labels import IMAGE_LABEL
from harbor_gym.sandboxes.labels import labels as own_labels


class DockerProject(HarborDockerEnvironment):
    """Harbor's Docker environment with labels of run and owner, fewer networks, and log folders of its own.

    Harbor mounts its log folders from the trial's directory of this machine, where a link planted inside would read as
    a file of this machine. Here they are the container's, or mounted from a temporary folder where a task has a
    Compose file, and are downloaded: the environment reports that it is not ``mounted``.
    """

    def __init__(
        self, environment_dir: Path, *args: Any, extra_docker_compose: Sequence[Path | str] | None = None, **kwargs: Any
    ) -> None:
        own_file = Path(environment_dir) / COMPOSE_FILE_NAME
        self._is_plain = not extra_docker_compose and not own_file.exists()
        self._container: str | None = None
        self._set_up_image: str | None = None
        self._overlay_dir: tempfile.TemporaryDirectory[str] | None = None
        self._logs_dir: tempfile.TemporaryDirectory[str] | None = None
        super().__init__(environment_dir, *args, extra_docker_compose=extra_docker_compose, **kwargs)
        self._log_mounts = [] if self._is_windows_container else [item for item in self._mounts if self._is_log(item)]

    @property
    def _project(self) -> str:
        return _sanitize_docker_compose_project_name(self.session_id)

    # --- network -------------------------------------------------------------------------------------------------

    @override
    def _requires_egress_control(  # pyright: ignore[reportIncompatibleMethodOverride]  # static in Harbor, called on self
        self, *, startup_network_policy: NetworkPolicy, phase_network_policies: Sequence[NetworkPolicy]
    ) -> bool:
        """Ask for Harbor's sidecar, whose images need a registry, only where a network can't just be taken away."""
        modes = {policy.network_mode for policy in (startup_network_policy, *phase_network_policies)}
        return NetworkMode.ALLOWLIST in modes or (not self._is_plain and modes != {NetworkMode.PUBLIC})

    @override
    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Do what Harbor does, and report why a network can't be held to what the task declares.

        Raises:
            ValueError: It can't; Harbor's own error.
        """
        try:
            super().validate_network_policy_support(network_policy)
        except ValueError as exc:
            if self._is_windows_container or self._enable_egress_control:
                raise
            why = egress.probe_refusal(self._EGRESS_CONTROL_KERNEL_PROBE_IMAGE)
            mode = (network_policy or self.network_policy).network_mode.value
            raise ValueError(
                f"network_mode='{mode}' is refused on Docker: Harbor's egress control, a sidecar that such a network "
                f"goes through, first runs a probe, and {why}"
            ) from exc

    @override
    async def _ensure_egress_control_sidecar_image_built(self) -> None:
        try:
            await super()._ensure_egress_control_sidecar_image_built()
        except RuntimeError as exc:
            why = egress.build_refusal(self._egress_control_sidecar_dockerfile_path(), exc)
            raise SandboxStartError(f"sandbox {self.session_id!r}: {why}") from exc

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        supported = super().capabilities
        if not self._is_windows_container:
            supported = supported.model_copy(update={"mounted": False})
        if not self._switches_network:
            return supported
        return supported.model_copy(update={"disable_internet": True, "dynamic_network_policy": True})

    @property
    def _switches_network(self) -> bool:
        return self._is_plain and not self._enable_egress_control and not self._is_windows_container

    @property
    def _needs_network(self) -> bool:
        policies = (self.network_policy, *self._phase_network_policies)
        return any(policy.network_mode is not NetworkMode.NO_NETWORK for policy in policies)

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if not self._switches_network:
            await super()._apply_network_policy(network_policy)
            return
        change = "connect" if network_policy.network_mode is NetworkMode.PUBLIC else "disconnect"
        code, output = await docker("network", change, SHARED_NETWORK.name(), self._container or "")
        if code != 0:
            raise SandboxError(f"sandbox {self.session_id!r}: docker network {change} failed: {output.strip()}")

    # --- Compose files -------------------------------------------------------------------------------------------

    @property
    @override
    def _docker_compose_paths(self) -> list[Path]:
        paths = super()._docker_compose_paths
        if self._overlay_dir is not None:
            # Before the task's own file, which has the last word.
            base = {self._DOCKER_COMPOSE_BUILD_PATH, self._DOCKER_COMPOSE_PREBUILT_PATH}
            place = next(index for index, path in enumerate(paths) if path in base)
            paths.insert(place + 1, Path(self._overlay_dir.name) / "overlay.json")
        return paths

    def _write_overlay(self) -> None:
        main: dict[str, Any] = {}
        networks: dict[str, Any] = {"default": {"labels": own_labels()}}
        if self._switches_network:
            networks = {"default": {"name": SHARED_NETWORK.name(), "external": True}} if self._needs_network else {}
            main = {} if self._needs_network else {"network_mode": "none"}
        if self._keeps_image:
            main |= {"image": self._main_image_name, "pull_policy": "never"}
            main["build"] = {"labels": {IMAGE_LABEL: self.environment_name}}
        if self._set_up_image is not None:
            main |= {"image": self._set_up_image, "pull_policy": "never"}
        declared = engine.own_services(self._user_compose_paths())
        if self._overlay_dir is not None:
            self._overlay_dir.cleanup()
        self._overlay_dir = self._temporary_dir("overlay")
        (Path(self._overlay_dir.name) / "overlay.json").write_text(
            engine.overlay(declared, main, networks), encoding="utf-8"
        )

    @property
    def _keeps_image(self) -> bool:
        """Whether the image's name identifies all that it is built from; Compose files can bring more into a build."""
        return self._is_plain and not self._use_prebuilt

    @staticmethod
    def _temporary_dir(what: str) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=temporary_prefix(what), ignore_cleanup_errors=True)

    @override
    def _write_mounts_compose_file(self) -> Path:
        self._cleanup_mounts_compose_file()
        self._mounts_compose_temp_dir = self._temporary_dir("mounts")
        path = Path(self._mounts_compose_temp_dir.name) / "docker-compose-mounts.json"
        return write_mounts_compose_file(path, self._mounts_of_this_machine)

    @override
    def _write_env_compose_file(self) -> Path:
        self._cleanup_env_compose_file()
        self._env_compose_temp_dir = self._temporary_dir("env")
        return write_env_compose_file(Path(self._env_compose_temp_dir.name) / ENV_COMPOSE_NAME, self._startup_env())

    @override
    async def _write_resources_compose_file(self) -> Path:
        # Harbor has just decided on the image, and no Compose command has run yet.
        if not self._is_windows_container:
            self._write_overlay()
        written = await super()._write_resources_compose_file()
        theirs, ours = self._resources_compose_temp_dir, self._temporary_dir("resources")
        self._resources_compose_temp_dir = ours
        path = written.replace(Path(ours.name) / written.name)
        if theirs is not None:
            theirs.cleanup()
        return path

    # --- log folders ---------------------------------------------------------------------------------------------

    def _is_log(self, mount: ServiceVolumeConfig) -> bool:
        trial = self.trial_paths.trial_dir.resolve()
        return mount["type"] == "bind" and Path(mount["source"]).resolve().is_relative_to(trial)

    @property
    def _mounts_of_this_machine(self) -> list[ServiceVolumeConfig]:
        return [item for item in self._mounts if not (self._is_plain and item in self._log_mounts)]

    def _share_logs(self) -> None:
        """Give the log folders that Compose files may share among services a place that nobody reads."""
        if self._is_plain or not self._log_mounts or self._logs_dir is not None:
            return
        self._logs_dir = self._temporary_dir("logs")
        moved: dict[str, ServiceVolumeConfig] = {}
        for number, mount in enumerate(self._log_mounts):
            folder = Path(self._logs_dir.name) / str(number)
            folder.mkdir()
            folder.chmod(0o777)
            moved[mount["target"]] = {**mount, "source": str(folder)}
        self._mounts = [moved.get(item["target"], item) if item in self._log_mounts else item for item in self._mounts]
        # Since 0.25 Harbor tells a Compose file of these alone where the log folders are.
        self._host_mounts = self._mounts

    # --- what a set-up command's container has ---------------------------------------------------------------------

    @property
    def _shares_setup_image(self) -> bool:
        """Whether an image made in a container of its own holds all that a set-up command could do in the sandbox."""
        return self._switches_network and not self._mounts_of_this_machine and self._effective_gpus == 0

    @property
    def _bounds(self) -> list[str]:
        """The words of ``docker run`` that limit what a container may take of the machine."""
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        memory_mb = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        words = [] if cpus is None else ["--cpus", str(float(cpus))]
        return words if memory_mb is None else [*words, "--memory", f"{memory_mb}m"]
