"""Harbor's own trials, for comparison with ours: the agent executes given commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.result import TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.trial.trial import Trial
from harbor.verifier.base import BaseVerifier

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.sandboxes import environment_config
from harbor_gym.types import EpisodeInfo

COMPLETE = json.dumps({"analysis": "", "plan": "", "commands": [], "task_complete": True})


class PlainAgent(BaseAgent):
    """An agent that needs no set-up in the sandbox."""

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Do nothing."""


class ScriptAgent(PlainAgent):
    """Execute one shell script a run, in order."""

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(skills=True, mcp_servers=True)

    def __init__(self, *args: Any, scripts: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scripts = iter(scripts)

    @staticmethod
    @override
    def name() -> str:
        return "script"

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        context.metadata = {"instruction": instruction}
        await environment.exec(next(self._scripts))


class FileVerifier(BaseVerifier):
    """A custom verifier: does a file exist?"""

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._path = path

    @override
    async def verify(self) -> VerifierResult:
        found = await self.environment.is_file(self._path)
        return VerifierResult(rewards={"there": float(found), "env": float(self.override_env.get("LEVEL") == "high")})


async def run_trial(
    task_dir: Path, scripts: Sequence[str], *, sandbox: str, trials_dir: Path, verifier: dict[str, Any] | None = None
) -> TrialResult:
    """Run a task as ``harbor run`` would, with the scripts for an agent."""
    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=trials_dir,
        agent=AgentConfig(import_path=f"{__name__}:ScriptAgent", kwargs={"scripts": list(scripts)}),
        environment=environment_config(sandbox),
        verifier=VerifierConfig(**(verifier or {})),
    )
    return await (await Trial.create(config)).run()


async def run_episode(
    task_dir: Path, scripts: Sequence[str], *, sandbox: str, **settings: Any
) -> tuple[list[tuple[float, bool, EpisodeInfo]], EpisodeInfo]:
    """Run a task as an episode, one script and one declaration a phase.

    Returns:
        Reward, done and ``info`` of each phase's last step, and the ``info`` of ``reset``.
    """
    config = TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, confirm_task_complete=False, **settings)
    ends: list[tuple[float, bool, EpisodeInfo]] = []
    async with AsyncTerminalGymEnv(config) as env:
        _, first = await env.reset()
        for script in scripts:
            _, reward, done, info = await env.step([(f"{script}\n", 60.0)])
            if not done:
                _, reward, done, info = await env.step(COMPLETE)
            ends.append((reward, done, info))
            if done:
                break
    return ends, first


def rewards_of(result: TrialResult) -> list[dict[str, float]]:
    """Return the rewards of each graded step, or of the only step; fail without a verdict."""
    graded = result.step_results or [result]
    verdicts = [item.verifier_result for item in graded if item.verifier_result is not None]
    assert verdicts, result.exception_info or [item.exception_info for item in graded]
    return [{name: float(value) for name, value in (item.rewards or {}).items()} for item in verdicts]


def graded_in(ends: Sequence[tuple[float, bool, EpisodeInfo]]) -> list[dict[str, float]]:
    """Return the verifier's rewards for each step of an episode, or for the only one."""
    *_, (_, _, last) = ends
    return list(last.get("step_rewards", ())) or [last.get("rewards", {})]


def instructions_of(result: TrialResult) -> list[str]:
    """Return the agent's instruction in each step, or in the only one."""
    contexts = [item.agent_result for item in result.step_results or [result]]
    return [(context.metadata or {})["instruction"] for context in contexts if context is not None]
