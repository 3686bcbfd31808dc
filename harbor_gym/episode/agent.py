"""The agent that a Harbor trial runs when the policy lives outside the trial."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harbor_gym.episode.resources import Resources, read_skills
from harbor_gym.errors import UsageError

IMPORT_PATH = f"{__name__}:PolicyAgent"
"""What Harbor's ``AgentConfig.import_path`` wants."""


class Stage(Protocol):
    """The waiting side of a trial: it is told when the agent's turn has come."""

    async def enter(
        self, instruction: str, environment: BaseEnvironment, context: contextvars.Context, resources: Resources
    ) -> asyncio.Future[None]:
        """Take over the agent phase; the phase lasts until the returned future is done."""
        ...


class PolicyAgent(BaseAgent):
    """Hand the sandbox to the episode that waits for it, and sleep until that episode says the phase is over.

    Args:
        stage: Key of a live stage in this process, as :func:`register` returned it.
    """

    _stages: ClassVar[dict[str, Stage]] = {}

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(skills=True, mcp_servers=True)
    """What the task declares of these is told to the policy, after its instruction."""

    def __init__(self, *args: Any, stage: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if stage not in self._stages:
            raise UsageError(f"no live episode {stage!r} in this process: PolicyAgent only runs under harbor_gym")
        self._stage = self._stages[stage]

    @staticmethod
    def name() -> str:
        """Return the agent's name in trial results."""
        return "harbor-gym"

    def version(self) -> str:
        """Return the version in trial results."""
        from harbor_gym import __version__

        return __version__

    async def setup(self, environment: BaseEnvironment) -> None:
        """Do nothing: the terminal belongs to the episode's owner."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Give the phase to the stage and wait for its end."""
        skills = await read_skills(environment, self.skills_dir) if self.skills_dir else ()
        resources = Resources(self.skills_dir, skills, tuple(self.mcp_servers))
        await (
            await self._stage.enter(instruction + resources.text(), environment, contextvars.copy_context(), resources)
        )


def register(key: str, stage: Stage) -> Callable[[], None]:
    """Make ``stage`` reachable under ``key`` for a trial in this process; call the result to forget it."""
    stages = PolicyAgent._stages  # pyright: ignore[reportPrivateUsage]  # same file, one registry
    stages[key] = stage

    def forget() -> None:
        stages.pop(key, None)

    return forget
