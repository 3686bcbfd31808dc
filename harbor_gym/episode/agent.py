"""The agent that a Harbor trial runs when the policy is outside the trial."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harbor_gym import __version__
from harbor_gym._runtime.harbor_versions import header_capability
from harbor_gym.episode.resources import Resources, read_skills
from harbor_gym.errors import UsageError

IMPORT_PATH = f"{__name__}:PolicyAgent"
"""The value of Harbor's ``AgentConfig.import_path``."""


class PhaseHandler(Protocol):
    """The receiver of a trial's agent phases."""

    async def open_phase(
        self, instruction: str, environment: BaseEnvironment, context: contextvars.Context, resources: Resources
    ) -> asyncio.Future[None]:
        """Take over the agent phase; the phase lasts until the returned future is done."""
        ...


class PolicyAgent(BaseAgent):
    """Hand the sandbox to the episode that waits for it, and wait until that episode ends the phase.

    Args:
        phase_handler: Key of a live handler in this process, as :func:`register` returned it.
    """

    _phase_handlers: ClassVar[dict[str, PhaseHandler]] = {}

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities.model_validate(
        {"skills": True, "mcp_servers": True, **header_capability()}
    )
    """Harbor passes the task's skills and MCP servers to such an agent, which adds them to the instruction."""

    def __init__(self, *args: Any, phase_handler: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if phase_handler not in self._phase_handlers:
            raise UsageError(
                f"no live episode {phase_handler!r} in this process: PolicyAgent only runs under harbor_gym"
            )
        self._phase_handler = self._phase_handlers[phase_handler]

    @staticmethod
    def name() -> str:
        """Return the agent's name in trial results."""
        return "harbor-gym"

    def version(self) -> str:
        """Return the version in trial results."""
        return __version__

    async def setup(self, environment: BaseEnvironment) -> None:
        """Do nothing: the terminal belongs to the episode's owner."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Give the phase to its handler and wait for its end."""
        skills = await read_skills(environment, self.skills_dir) if self.skills_dir else ()
        resources = Resources(self.skills_dir, skills, tuple(self.mcp_servers))
        await (
            await self._phase_handler.open_phase(
                instruction + resources.text(), environment, contextvars.copy_context(), resources
            )
        )


def register(key: str, phase_handler: PhaseHandler) -> Callable[[], None]:
    """Register ``phase_handler`` under ``key`` for a trial in this process; the returned function removes it."""
    phase_handlers = PolicyAgent._phase_handlers  # pyright: ignore[reportPrivateUsage]  # same file, one registry
    phase_handlers[key] = phase_handler

    def forget() -> None:
        phase_handlers.pop(key, None)

    return forget
