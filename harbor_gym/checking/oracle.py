"""Agents of an episode that earn what a policy would earn for the same commands: the task's solution, and none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.errors import HarborGymError, SandboxLostError, TaskError

if TYPE_CHECKING:
    from harbor_gym.checking.play import Work
    from harbor_gym.episode import AgentPhase, Episode


def has_solution(task_dir: Path) -> bool:
    """Tell whether the task brings a solution that the oracle could run."""
    return (task_dir / "solution").is_dir() or any(task_dir.glob("steps/*/solution"))


async def do_nothing(_episode: Episode, _phase: AgentPhase) -> None:
    """Leave the sandbox as it is."""


def oracle(task_dir: Path) -> Work:
    """Return the work of Harbor's oracle: it uploads the solution, or the step's own, and runs it as the task's user.

    Args:
        task_dir: The directory of a well-formed task with a solution.
    """
    from harbor.agents.oracle import OracleAgent
    from harbor.models.agent.context import AgentContext
    from harbor.models.trial.paths import TrialPaths

    agent: OracleAgent | None = None  # one for all steps: it counts them

    async def solve(episode: Episode, phase: AgentPhase) -> None:
        from harbor_gym.episode.episode import run_in_phase

        nonlocal agent
        if agent is None:
            assert episode.trial_dir is not None
            paths = TrialPaths(episode.trial_dir)
            agent = OracleAgent(logs_dir=paths.agent_dir, task_dir=task_dir, trial_paths=paths)
            await run_in_phase(phase, agent.setup(phase.environment))
        run = agent.run(phase.instruction, phase.environment, AgentContext())
        limit = asyncio.timeout(phase.timeout_sec)
        try:
            # Harbor grades what a solution has done by the end of its time, too.
            async with limit:
                await run_in_phase(phase, run)
        except TimeoutError as exc:
            if not limit.expired():
                raise SandboxLostError(f"the sandbox did not answer the solution: {exc}") from exc
        except HarborGymError:
            raise
        except (FileNotFoundError, ValueError) as exc:
            raise TaskError(f"the solution can't be run: {exc}") from exc
        except Exception as exc:  # The boundary to foreign code: environments raise what their client library raises.
            raise SandboxLostError(f"the sandbox could not run the solution: {type(exc).__name__}: {exc}") from exc

    return solve
