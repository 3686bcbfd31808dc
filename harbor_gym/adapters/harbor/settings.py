"""Settings of episodes that a trainer's own configuration lacks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from harbor_gym._runtime.harbor_versions import require_server
from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_N_CONCURRENT,
    AgentEpisodeConfig,
    AnyEpisode,
    MaxRetries,
    NConcurrent,
    aliases,
    describe_problems,
    read_episode,
    validate_episode,
)
from harbor_gym.errors import UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.types import ChatCodec, Sampler


def _checked(env: dict[str, Any]) -> dict[str, Any]:
    if "task_dir" in env:
        raise ValueError("task_dir can't be set: each row of the dataset has its own")
    validate_episode(env)
    return env


@aliases.accepting(aliases.TRAINER)
@dataclass
class EpisodeSettings:
    """How episodes are played, retried and bounded. Budgets in turns and tokens are the trainer's."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    env: Annotated[dict[str, Any], AfterValidator(_checked)] = field(default_factory=dict[str, Any])
    """Fields of the episode: with ``agent`` those of :class:`harbor_gym.config.AgentEpisodeConfig`, else those of
    :class:`harbor_gym.TerminalEnvConfig`. ``max_turns`` takes the place of the trainer's own."""

    max_retries: MaxRetries = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""

    n_concurrent: NConcurrent = DEFAULT_N_CONCURRENT
    """Concurrent episodes, over all calls; in verl, in each of its agent loop workers
    (``rollout.agent.num_workers``)."""

    @property
    def episode(self) -> AnyEpisode:
        """The record that ``env`` describes, without a task."""
        return read_episode(self.env)

    @classmethod
    def read(cls, entries: Mapping[str, Any], section: str) -> Self:
        """Return the settings of a section of the trainer's configuration, also by their earlier names.

        Raises:
            UsageError: A field is unknown, its value is invalid, or two fields contradict each other.
        """
        try:
            settings = TypeAdapter(cls).validate_python(aliases.moved(entries, aliases.TRAINER))
        except ValidationError as exc:
            raise UsageError(f"{section} can't be used: {describe_problems(exc)}") from exc
        except ValueError as exc:
            raise UsageError(f"{section}: {exc}") from exc
        episode = settings.episode
        if isinstance(episode, AgentEpisodeConfig) and episode.harbor_server is not None:
            require_server()
        return settings

    def checked(self, section: str) -> Self:
        """Validate these settings like :meth:`read`, and return them with converted values."""
        return self.read(asdict(self), section)

    def interface(self, sampler: Sampler, codec: ChatCodec, limits: SessionLimits) -> RolloutInterface:
        """Return the rollout interface with these settings.

        Args:
            sampler: Samples the policy's messages.
            codec: Writes conversations as tokens.
            limits: The trainer's budgets.
        """
        return RolloutInterface(self.episode, sampler, codec, limits=limits, max_retries=self.max_retries)
