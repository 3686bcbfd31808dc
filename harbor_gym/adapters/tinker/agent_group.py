"""A group of episodes of one of Harbor's agents for tinker-cookbook's RL loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import override

from tinker_cookbook.rl.types import Env, Metrics, Trajectory

from harbor_gym.adapters.tinker.agent_env import HarborAgentTinkerEnv
from harbor_gym.adapters.tinker.codec import RendererCodec
from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
from harbor_gym.adapters.tinker.shaping import find_trajectory_reward
from harbor_gym.config import AgentEpisodeConfig, Snapshot
from harbor_gym.errors import UsageError
from harbor_gym.pool import WarmPool


@dataclass
class HarborAgentEnvGroupBuilder(HarborSingleTaskEnvGroupBuilder):
    """Makes a group of episodes in which one of Harbor's agents plays, with the policy as its model.

    Harbor starts the sandboxes, so warm ones are not used. Transcripts have the agent's own conversation; its terminal
    is not recorded.
    """

    @override
    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Add nothing to the verifier's rewards, and remove untrained answers from the trajectories."""
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            if isinstance(env, HarborAgentTinkerEnv):
                env.keep_segments(trajectory)
        return await super().compute_group_rewards(trajectory_group, env_group)

    @override
    async def _pool(self) -> WarmPool | None:
        """Return None, since a Harbor trial starts its own sandbox."""
        return None

    @override
    def _make_env(
        self, codec: RendererCodec, index: int, pool: WarmPool | None, *, start_from: Snapshot | None = None
    ) -> HarborAgentTinkerEnv:
        if start_from is not None:
            raise UsageError("branch is for our own loop: an episode of one of Harbor's agents has no copy")
        if self.template.make_env is not None:
            raise UsageError("make_env is for our own loop: Harbor's trial starts the sandbox of an agent")
        template, config = self.template, self.template.env
        assert isinstance(config, AgentEpisodeConfig)  # the dataset's builder chooses the class by it
        return HarborAgentTinkerEnv(
            config,
            codec,
            max_tokens=template.max_tokens,
            max_context_tokens=template.max_context_tokens,
            labels=self._labels(index),
            transcript_path=self._transcript_path(index),
            reward=find_trajectory_reward(template.trajectory_reward),
        )
