"""Play the episodes of an evaluation with a model behind a chat endpoint."""

from dataclasses import dataclass, replace

from harbor_gym._runtime.files import StrPath
from harbor_gym.config import DEFAULT_MAX_RETRIES, EpisodeConfig, aliases, require_own_loop
from harbor_gym.config.snapshot import KeepSnapshot
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodeResult, Timed, play_recorded
from harbor_gym.samplers import ChatEndpoint, run_chat_episode
from harbor_gym.types import Rollout


@aliases.accepting(aliases.PLAYER)
@dataclass(frozen=True)
class ChatPlayer:
    """Plays episodes with a model behind an OpenAI-style chat endpoint."""

    endpoint: ChatEndpoint
    """The open endpoint."""

    max_retries: int = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""

    transcripts_dir: StrPath | None = None
    """Folder for transcripts and recordings, with the layout of a training run; None writes none."""

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`EpisodePlayer.attempt`."""
        timed = Timed(self.endpoint.__call__)

        async def play(config: EpisodeConfig, keep: KeepSnapshot | None) -> Rollout:
            return await run_chat_episode(
                AsyncTerminalGymEnv(require_own_loop(config, "a chat model")), timed, keep=keep
            )

        result, rollout = await play_recorded(config, number, play, self.transcripts_dir)
        return replace(result, sampling_sec=round(timed.seconds, 3)), rollout.error
