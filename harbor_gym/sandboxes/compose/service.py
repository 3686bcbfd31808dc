"""The sandbox of one service beside ``main``, which runs a command of its own."""

from __future__ import annotations

from typing import Any, override

from harbor.models.task.config import EnvironmentConfig, NetworkPolicy

from harbor_gym.sandboxes.compose.environment import ComposedEnvironment
from harbor_gym.sandboxes.compose.member import Member
from harbor_gym.sandboxes.health import Healthcheck
from harbor_gym.sandboxes.namespaced import default_env
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec

_MAINS_OWN = {
    "setup_command", "build_dockerfile", "force_pull", "workdir", "host_name", "image", "rootfs", "forkable"
}  # fmt: skip
"""Options that are about ``main`` alone, or are applied to all images at once."""


class ServiceSandbox(ComposedEnvironment[Any]):
    """One service of an episode's Compose project. The project starts and stops it.

    It is the first base of a class whose second one is an environment: a sandbox of that kind.

    Args:
        member: The service.
        main: The agent's sandbox.
    """

    def __init__(self, member: Member, main: ComposedEnvironment[Any]) -> None:
        options = main.given_options.model_dump(exclude=_MAINS_OWN)
        super().__init__(
            environment_dir=main.environment_dir,
            environment_name=f"{main.environment_name}/{member.service.name}",
            session_id=f"{main.session_id}__{member.service.name}",
            trial_paths=main.trial_paths,
            task_env_config=EnvironmentConfig(
                build_timeout_sec=main.task_env_config.build_timeout_sec, storage_mb=main.task_env_config.storage_mb
            ),
            network_policy=main.network_policy,
            phase_network_policies=main.phase_policies,
            **{**options, "processor_set": False},
        )
        self._member = member

    @override
    def _validate_definition(self) -> None:
        pass  # the project was read

    @property
    @override
    def _uses_compose(self) -> bool:
        return False

    @property
    def member(self) -> Member:
        """The service among those of its project."""
        assert self._member is not None
        return self._member

    @property
    @override
    def _host_name(self) -> str:
        return self.member.service.name

    async def bring_up(self, *, network_of: int) -> None:
        """Start the sandbox, without its command.

        Args:
            network_of: The first process of the sandbox whose network it has; 0 for one of its own.
        """
        self._network_process = network_of
        await self._bring_up_sandbox()

    async def follow(self, policy: NetworkPolicy) -> None:
        """Have the network of another phase."""
        await self._apply_network_policy(policy)

    @property
    def healthcheck(self) -> Healthcheck | None:
        """Its check: the service's own, or the image's."""
        return self._started_image().healthcheck

    async def check_health(self, limit_sec: float) -> tuple[int, str]:
        """Run the check once; return its status and its output."""
        return await self._check_health(self._started_image(), limit_sec)

    @override
    def _request(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | int | None = None,
    ) -> CommandSpec:
        # As Harbor's Docker: sh, and nothing of what is main's own.
        image = self._started_image()
        who = image.user if user is None else str(user)
        own = {**default_env(image), **(env or {})}
        return self._restricted(CommandSpec(command, who, cwd or image.workdir, own, ("sh", "-c", command)))
