"""One of Harbor's agents as tinker-cookbook's ``Env``: the agent's requests are the observations."""

import time
from typing import Any, override

from tinker_cookbook.rl.types import Logs, Metrics, Trajectory

from harbor_gym._runtime.files import StrPath
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.tinker.codec import TrainedCodec
from harbor_gym.adapters.tinker.env import EpisodeEnv
from harbor_gym.adapters.tinker.shaping import TrajectoryReward
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.gateway import SessionLimits
from harbor_gym.stragglers import EpisodeClock
from harbor_gym.types import Rollout, Transcript


class HarborAgentTinkerEnv(EpisodeEnv):
    """One episode of one of Harbor's agents for tinker-cookbook's RL loop.

    The agent runs in a Harbor trial and calls a session of the gateway. Observations are the session's exact tokens.

    Args:
        config: The task, the sandbox and the agent.
        codec: Writes and reads chats in the model family's format.
        max_tokens: The sampler's limit for one message, in tokens.
        max_context_tokens: The model's context window in tokens; None sets no limit.
        labels: The episode's labels in logs and its transcript.
        transcript_path: The file for the episode's transcript; None writes none.
        reward: Adds to the reward of the last transition; its metric is ``trajectory_reward``.
    """

    def __init__(
        self,
        config: AgentEpisodeConfig,
        codec: TrainedCodec,
        *,
        max_tokens: int,
        max_context_tokens: int | None = None,
        labels: dict[str, Any] | None = None,
        transcript_path: StrPath | None = None,
        reward: TrajectoryReward | None = None,
    ) -> None:
        super().__init__(codec, labels=labels, transcript_path=transcript_path, reward=reward)
        self._config = config
        limits = SessionLimits(max_context_tokens=max_context_tokens, max_answer_tokens=max_tokens)
        # The loop's strategy retries an episode.
        self._interface = RolloutInterface(config, self._ask, codec, limits=limits, max_retries=0)
        self._started = 0.0

    @override
    async def complete(self, trajectory: Trajectory) -> None:
        """Order a trajectory's transitions by the rollout's segments, and remove answers that no segment trains.

        The cookbook makes one datum of turns that extend one another, and begins a new datum at any other turn.
        """
        if self._rollout is None:
            return
        self._keep_trained(
            trajectory,
            [
                (*segment.prompt, *segment.completion[: span.end])
                for segment in self._rollout.segments
                for span in segment.spans
                if span.is_trained
            ],
        )

    @override
    async def _play(self) -> Rollout:
        self._started = time.monotonic()
        return await self._interface.run_one(self._config.task_dir, clock=EpisodeClock(self.ends_at))

    @override
    def _transcript(self) -> Transcript:
        return Transcript() if self._rollout is None else self._rollout.transcript

    @override
    def _last_turn(self) -> tuple[float, Metrics, Logs]:
        if self._rollout is None:
            return 0.0, {}, {}
        took = time.monotonic() - self._started
        return self._rollout.reward or 0.0, {**self._rollout.metrics, "time/episode_sec": took}, {}
