"""Play the episodes of an evaluation with one of Harbor's agents and a model behind a chat endpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

from harbor.models.trial.config import AgentConfig

from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.config.snapshot import KeepSnapshot
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodeResult, play_recorded
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.types import Rollout


@dataclass(frozen=True)
class AgentPlayer:
    """Plays episodes with one of Harbor's agents, which calls a session of the gateway and never gets the API key."""

    endpoint: ChatEndpoint
    """The open endpoint."""

    agent: AgentConfig | str
    """See :class:`RolloutInterface`."""

    retries: int = 1
    """Fresh attempts at an episode that an infrastructure error ended."""

    transcripts_dir: Path | None = None
    """Folder for transcripts; None writes none. An agent's terminal is not recorded."""

    async def attempt(self, config: TerminalEnvConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`harbor_gym.evaluation.EpisodePlayer.attempt`."""
        sampler = ProxySampler(self.endpoint)

        async def play(recorded: TerminalEnvConfig, _keep: KeepSnapshot | None) -> Rollout:
            interface = RolloutInterface.from_config(config, sampler, ProxyCodec(), self.agent)
            return await interface.run_one(recorded.task_dir)

        result, rollout = await play_recorded(config, number, play, self.transcripts_dir)
        counted = replace(
            result,
            turns=int(rollout.metrics["turns"]),
            prompt_tokens=sampler.last_prompt_tokens,
            sampled_tokens=sampler.sampled_tokens,
            sampling_sec=round(rollout.metrics["gateway/sampler_sec"], 3),
            unread_calls=int(rollout.metrics["gateway/unread_calls"]),
        )
        return counted, rollout.error
