"""Settings of an episode that a trainer's own configuration lacks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from harbor_gym._runtime.harbor_versions import require_server
from harbor_gym.adapters.harbor.agents import unchecked_agent
from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.adapters.harbor.server import HarborServer
from harbor_gym.adapters.harbor.strategy import Strategy
from harbor_gym.config import TerminalEnvConfig, describe_problems, require_fields_of_own_loop
from harbor_gym.errors import UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.types import DEFAULT_SANDBOX, ChatCodec, Sampler, TrainSegments


def _checked_env(env: dict[str, Any]) -> dict[str, Any]:
    if "task_dir" in env:
        raise ValueError("task_dir can't be set: each row of the dataset has its own")
    try:
        require_fields_of_own_loop(TerminalEnvConfig(task_dir=Path(), **env))
    except ValidationError as exc:
        raise ValueError(describe_problems(exc)) from exc
    return env


@dataclass
class EpisodeSettings:
    """Sandbox, agent, reward and retries. Budgets in turns and tokens are the trainer's."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    sandbox: str = DEFAULT_SANDBOX
    """``local``, a Harbor environment type by name, or ``module.path:Class``."""

    sandbox_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the sandbox's class."""

    agent: str | None = None
    """A name of :data:`harbor_gym.gateway.agents.AGENTS`, or the ``module.path:Class`` of any Harbor agent, which then
    calls the gateway. None: the policy writes messages in ``env.action_format``."""

    agent_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the agent. An agent that is not listed needs ``{gateway_url}`` in place of its base URL."""

    env: Annotated[dict[str, Any], AfterValidator(_checked_env)] = field(default_factory=dict[str, Any])
    """Further fields of :class:`harbor_gym.TerminalEnvConfig`. Only without an agent."""

    time_limit_sec: Annotated[float | None, Field(gt=0)] = None
    """Time limit of an episode in seconds: of terminal time without an agent, of the whole conversation with one."""

    reward_key: str | None = None
    """Name of the verifier's reward that is the scalar; None is ``reward``, or the only one there is."""

    reward_function: str | None = None
    """As ``TerminalEnvConfig.reward_function``; instead of ``reward_key``."""

    zero_reward_on_limit: bool = False
    """As ``TerminalEnvConfig.zero_reward_on_limit``."""

    harbor_server: str | None = None
    """As ``TerminalEnvConfig.harbor_server``; only with an agent."""

    trials_dir: Path | None = None
    """As ``TerminalEnvConfig.trials_dir``."""

    max_retries: Annotated[int, Field(ge=0)] = 1
    """Retries of each episode in a fresh sandbox after infrastructure failures."""

    n_concurrent: Annotated[int, Field(ge=1)] = 64
    """Concurrent episodes, over all calls; in verl, in each of its agent loop workers
    (``rollout.agent.num_workers``)."""

    @classmethod
    def read(cls, entries: Mapping[str, Any], section: str) -> Self:
        """Return the settings of a section of the trainer's configuration.

        Raises:
            UsageError: A field is unknown, its value is invalid, or two fields contradict each other.
        """
        try:
            settings = TypeAdapter(cls).validate_python(dict(entries))
        except ValidationError as exc:
            raise UsageError(f"{section} can't be used: {describe_problems(exc)}") from exc
        if settings.agent is not None and settings.env:
            raise UsageError(f"{section}: env configures the policy's own loop, and agent replaces that: set one")
        if settings.agent is None and (settings.agent_kwargs or settings.harbor_server is not None):
            name = "agent_kwargs" if settings.agent_kwargs else "harbor_server"
            raise UsageError(f"{section}: {name} is for the episodes of an agent, which is not set")
        if settings.harbor_server is not None:
            require_server()
        return settings

    def checked(self, section: str) -> Self:
        """Validate these settings like :meth:`read`, and return them with converted values."""
        return self.read(asdict(self), section)

    def interface(
        self, sampler: Sampler, codec: ChatCodec, *, train_segments: TrainSegments = "main", **limits: Any
    ) -> RolloutInterface:
        """Return the rollout interface with these settings.

        Args:
            sampler: Samples the policy's messages.
            codec: Writes conversations as tokens.
            train_segments: See :class:`RolloutInterface`.
            limits: The trainer's budgets: fields of :class:`harbor_gym.gateway.SessionLimits`.
        """
        return RolloutInterface(
            sampler=sampler,
            codec=codec,
            agent=None if self.agent is None else unchecked_agent(self.agent, self.agent_kwargs),
            strategy=Strategy.ENV if self.agent is None else Strategy.GATEWAY,
            sandbox=self.sandbox,
            sandbox_options=self.sandbox_options,
            limits=SessionLimits(time_limit_sec=self.time_limit_sec, **limits),
            env_settings=self.env,
            max_retries=self.max_retries,
            train_segments=train_segments,
            reward_key=self.reward_key,
            reward_function=self.reward_function,
            zero_reward_on_limit=self.zero_reward_on_limit,
            server=None if self.harbor_server is None else HarborServer(self.harbor_server),
            trials_dir=self.trials_dir,
        )
