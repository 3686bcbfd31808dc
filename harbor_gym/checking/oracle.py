"""Agents in the policy's place: one that runs the task's solution, and one that does nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harbor_gym.errors import HarborGymError, SandboxLostError, TaskError
from harbor_gym.sandboxes.extensions import SupportsWrittenPaths

if TYPE_CHECKING:
    from harbor.agents.oracle import OracleAgent

    from harbor_gym.episode import AgentPhase, Episode


def has_solution(task_dir: Path) -> bool:
    """Return whether the task has a solution that the oracle could run."""
    return (task_dir / "solution").is_dir() or any(task_dir.glob("steps/*/solution"))


async def do_nothing(_episode: Episode, _phase: AgentPhase) -> None:
    """Leave the sandbox as it is."""


class Oracle:
    """Harbor's oracle in a policy's place: it uploads the solution, or the step's own, and runs it as the task's user.

    Args:
        task_dir: The directory of a well-formed task with a solution.
    """

    def __init__(self, task_dir: Path) -> None:
        self._task_dir = task_dir
        self._agent: OracleAgent | None = None  # one for all steps: it counts them
        self.written: set[PurePosixPath] = set()
        """Paths that the solution changed in the sandbox, where the sandbox reports them."""

    async def __call__(self, episode: Episode, phase: AgentPhase) -> None:
        """Run the solution, within the agent's time limit of the task."""
        from harbor_gym.episode.episode import run_in_phase

        agent = self._agent = self._agent or self._make_agent(episode)
        limit = asyncio.timeout(phase.timeout_sec)
        try:
            # After the time limit the state is graded, as Harbor does.
            async with limit:
                await run_in_phase(phase, _run(agent, phase))
        except TimeoutError as exc:
            if not limit.expired():
                raise SandboxLostError(f"the sandbox did not answer the solution: {exc}") from exc
        except HarborGymError:
            raise
        except (FileNotFoundError, ValueError) as exc:
            raise TaskError(f"the solution can't be run: {exc}") from exc
        except Exception as exc:  # The boundary to foreign code: environments raise what their client library raises.
            raise SandboxLostError(f"the sandbox could not run the solution: {type(exc).__name__}: {exc}") from exc
        if isinstance(phase.environment, SupportsWrittenPaths):
            self.written.update(await phase.environment.written_paths())

    def _make_agent(self, episode: Episode) -> OracleAgent:
        from harbor.agents.oracle import OracleAgent
        from harbor.models.trial.paths import TrialPaths

        assert episode.trial_dir is not None
        paths = TrialPaths(episode.trial_dir)
        return OracleAgent(logs_dir=paths.agent_dir, task_dir=self._task_dir, trial_paths=paths)


async def _run(agent: OracleAgent, phase: AgentPhase) -> None:
    from harbor.models.agent.context import AgentContext

    await agent.setup(phase.environment)
    await agent.run(phase.instruction, phase.environment, AgentContext())
