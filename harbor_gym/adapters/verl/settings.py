"""Settings for which verl's own configuration has no place: the entries of a loop in its YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from harbor.models.trial.config import AgentConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harbor_gym.adapters.harbor.agents import unchecked_agent
from harbor_gym.config import describe_problems
from harbor_gym.errors import UsageError
from harbor_gym.types import DEFAULT_SANDBOX


class LoopSettings(BaseModel):
    """What both loops have. Budgets of an episode are verl's: ``rollout.prompt_length``, ``rollout.response_length``,
    ``rollout.max_model_len`` and ``rollout.multi_turn.max_assistant_turns``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name, or ``module.path:Class``."""

    sandbox_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the sandbox's class."""

    max_answer_tokens: int = Field(default=2048, gt=0)
    """Tokens of one message."""

    time_limit_sec: float | None = Field(default=None, gt=0)
    """Seconds of an episode: of terminal time in our own loop, of the whole conversation with an agent."""

    reward_key: str | None = None
    """Which of the verifier's rewards is the scalar; None is ``reward``, or the only one there is."""

    reward_function: str | None = None
    """As ``TerminalEnvConfig.reward_function``; instead of ``reward_key``."""

    zero_reward_on_limit: bool = False
    """As ``TerminalEnvConfig.zero_reward_on_limit``."""

    trials_dir: Path | None = None
    """As ``TerminalEnvConfig.trials_dir``."""

    max_retries: int = Field(default=1, ge=0)
    """Fresh sandboxes that may follow one that the infrastructure lost, of each episode."""

    n_concurrent: int = Field(default=64, gt=0)
    """Episodes at the same time in each of verl's agent loop workers (``rollout.agent.num_workers``)."""

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Self:
        """Return the settings of a loop's entries.

        Raises:
            UsageError: An entry is unknown, or its value can't be used.
        """
        try:
            return cls(**entries)
        except ValidationError as exc:
            raise UsageError(f"the agent loop's configuration can't be used: {describe_problems(exc)}") from exc


class TerminalLoopSettings(LoopSettings):
    """Of :class:`HarborTerminalLoop`."""

    env: dict[str, Any] = Field(default_factory=dict)
    """Further fields of :class:`harbor_gym.TerminalEnvConfig`."""


class AgentLoopSettings(LoopSettings):
    """Of :class:`HarborAgentLoop`."""

    agent: str = "terminus-2"
    """A name of :data:`harbor_gym.gateway.agents.AGENTS`, or the ``module.path:Class`` of any agent of Harbor's."""

    agent_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the agent. One that is not listed has ``{gateway_url}`` where its base URL belongs."""

    harbor_server: str | None = None
    """As ``TerminalEnvConfig.harbor_server``."""

    def agent_config(self) -> AgentConfig:
        """Return Harbor's configuration of the agent."""
        return unchecked_agent(self.agent, self.agent_kwargs)
