"""The environment: one policy, one Harbor task, one episode."""

from typing import Any, override

import verifiers.v1 as vf
from pydantic import model_validator
from verifiers.v1.configs.retries import RetryConfig, RetryRule
from verifiers.v1.runtimes import SubprocessConfig

from harbor_gym.adapters.verifiers import PLUGIN_ID
from harbor_gym.adapters.verifiers.harness import HarborTerminalHarness, SharedState

_RETRIES = RetryConfig(
    max_retries=0,
    rules=[
        RetryRule(type="SandboxError", max_retries=1),
        RetryRule(type="TaskError", message="^verifier_", max_retries=1),
        RetryRule(type="HarnessError", message="^agent_failed", max_retries=1),
        RetryRule(type="InterceptionError", message="^sampler_error", max_retries=1),
        RetryRule(type="ProviderError", status_code=[429, "5xx"], max_retries=1),
    ],
)
"""One retry in a fresh sandbox after an infrastructure failure, as elsewhere in the package."""


class HarborEnvConfig(vf.EnvConfig):
    """Settings of the policy's side of an episode."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig(), retries=_RETRIES)
    """The policy under evaluation or training. Its ``retries`` allow one retry after a failure of sandbox, terminal,
    verifier, agent or engine; an episode that still has no verdict is an error, and not trained on."""

    @model_validator(mode="before")
    @classmethod
    def _name_harness(cls, data: Any) -> Any:
        """Make this package's harness the default for settings without an id; verifiers' default is another one."""
        match data:
            case {"agent": {"harness": {**harness}, **agent}, **rest} if not harness.get("id"):
                return {**rest, "agent": {**agent, "harness": {**harness, "id": PLUGIN_ID}}}
            case _:
                return data


class HarborTerminalEnv(vf.Env[HarborEnvConfig]):
    """Plays a Harbor task with one policy. Checks the sandbox before the first episode, and closes its warm pools."""

    def __init__(self, config: HarborEnvConfig) -> None:
        super().__init__(config)
        self._shared = SharedState()

    @override
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one episode."""
        if isinstance(agents.agent.harness, HarborTerminalHarness):
            agents.agent.harness.shared = self._shared
        self._shared.note_refusal(await agents.agent.run(task))

    @override
    async def start(self) -> None:
        """Check that sandboxes can start here.

        Raises:
            MissingDependencyError: A package, a program or a daemon is missing.
            UsageError: A setting is missing or wrong.
        """
        for harness in self._harnesses.values():
            if isinstance(harness, HarborTerminalHarness):
                await harness.preflight()

    @override
    async def stop(self) -> None:
        """Close the warm pools."""
        await self._shared.close()
