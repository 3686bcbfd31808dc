"""Play the episodes of an evaluation with one of Harbor's agents and a model behind a chat endpoint."""

from dataclasses import dataclass, replace

from harbor_gym._runtime.files import StrPath
from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.config import DEFAULT_MAX_RETRIES, EpisodeConfig, aliases
from harbor_gym.config.snapshot import KeepSnapshot
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodeResult, play_recorded
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.types import Rollout


@aliases.accepting(aliases.PLAYER)
@dataclass(frozen=True)
class AgentPlayer:
    """Plays episodes with one of Harbor's agents, which calls a session of the gateway and never gets the API key."""

    endpoint: ChatEndpoint
    """The open endpoint."""

    max_retries: int = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""

    transcripts_dir: StrPath | None = None
    """Folder for transcripts; None writes none. An agent's terminal is not recorded."""

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`harbor_gym.evaluation.EpisodePlayer.attempt`."""
        sampler = ProxySampler(self.endpoint)

        async def play(config: EpisodeConfig, _keep: KeepSnapshot | None) -> Rollout:
            interface = RolloutInterface(config, sampler, ProxyCodec(), max_retries=0)  # an attempt is one try
            return await interface.run_one(config.task_dir)

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
