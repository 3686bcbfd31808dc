"""A group of episodes of one task for tinker-cookbook's RL loop."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, Trajectory

from harbor_gym import errors
from harbor_gym.adapters.tinker.branching import branch_metrics
from harbor_gym.adapters.tinker.codec import TrainedCodec
from harbor_gym.adapters.tinker.env import STOP_REASONS, EpisodeEnv, HarborTerminalTinkerEnv
from harbor_gym.adapters.tinker.sampling import codec_for
from harbor_gym.adapters.tinker.shaping import find_make_env, find_trajectory_reward
from harbor_gym.adapters.tinker.template import GroupTemplate
from harbor_gym.config import AgentEpisodeConfig, Snapshot, TerminalEnvConfig, require_own_loop
from harbor_gym.config.snapshot import NO_START
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.outcomes import error_name
from harbor_gym.pool import WarmPool, portal_pool, shared_pool
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.wrappers import PortalEnv

logger = logging.getLogger(__name__)

_INFRASTRUCTURE_ERRORS = tuple(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and getattr(kind, "is_infrastructure", False)
)


@dataclass
class HarborSingleTaskEnvGroupBuilder(EnvGroupBuilder):
    """Makes a group of environments of one task. Before ``make_envs`` it has only configuration, so it pickles.

    Sandboxes start when the loop requests the first observations, all of a group concurrently; environments that are
    never used cost nothing. Where one of Harbor's agents plays, Harbor starts them, so that warm ones are not used;
    transcripts then have the agent's own conversation, and its terminal is not recorded.
    """

    template: GroupTemplate
    """The settings of the group, shared by all groups of its dataset."""

    label: str = ""
    """The group's name in transcripts, a relative path such as ``train/batch_0003/group_1``."""

    warm_sandboxes: int = 0
    """Sandboxes that the event loop keeps ready for all groups of this configuration; 0 keeps none."""

    is_last: bool = False
    """Whether the next batch needs no sandbox of this configuration: the pool is then used up and not refilled."""

    in_worker: bool = False
    """Whether a worker process plays the group, on an event loop that ends with the group. The process then keeps
    ``warm_sandboxes`` ready for its next group of this configuration."""

    warm_next: tuple[tuple[TerminalEnvConfig, int], ...] = ()
    """Configurations and numbers of sandboxes that the next batch needs; they are started while this group runs."""

    task_name: str = ""
    """The task's name in metrics and transcripts; by default that of its directory."""

    _envs: list[EpisodeEnv] = field(default_factory=list[EpisodeEnv], init=False, repr=False)
    _made: int = field(default=0, init=False, repr=False)
    _noted: Metrics = field(default_factory=dict[str, float | int], init=False, repr=False)

    @property
    def own_env(self) -> TerminalEnvConfig:
        """The episodes' configuration.

        Raises:
            UsageError: One of Harbor's agents plays them.
        """
        return require_own_loop(self.template.env, "a group with sandboxes of its own")

    async def make_envs(self) -> Sequence[Env]:
        """Make ``group_size`` environments. May be called again for retries; ``cleanup`` closes all of them."""
        codec = await asyncio.to_thread(codec_for, self.template.renderer_name, self.template.model_name)
        pool = await self._pool()
        for config, size in self.warm_next:
            shared_pool(config, size=size).refill_to(size)
        envs = [self._make_env(codec, self._made + index, pool) for index in range(self.template.group_size)]
        self._made += self.template.group_size
        self._envs.extend(envs)
        return envs

    async def make_copy(self, env: Env, snapshot: Snapshot) -> Env:
        """Make an environment that begins at a snapshot, and replaces the unused ``env``."""
        codec = await asyncio.to_thread(codec_for, self.template.renderer_name, self.template.model_name)
        index = next(index for index, known in enumerate(self._envs) if known is env)
        self._envs[index] = copy = self._make_env(codec, index, await self._pool(), start_from=snapshot)
        return copy

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Add nothing to the verifier's rewards; report each episode's end reason, for shares over the batch.

        An agent's untrained answers are removed from its trajectory.

        The first episode also has the group's metrics, so that the cookbook's mean is per group: ``infra/lost``
        (episodes), ``infra/retried`` (in fresh sandboxes), ``infra/masked`` (left out), the losses by error, and
        :attr:`harbor_gym.stragglers.ClosedGroup.metrics`. With ``branch``, a copy's reward includes those of the shared
        turns, and there are ``branch/…`` metrics.
        """
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            if isinstance(env, EpisodeEnv):
                await env.complete(trajectory)
        rewards: list[tuple[float, Metrics]] = [
            (
                getattr(trajectory, "paid", 0.0),
                {f"ended/{reason}": float(trajectory.stop_reason == reason) for reason in STOP_REASONS},
            )
            for trajectory in trajectory_group
        ]
        if rewards:
            losses = self._losses(survivors=len(trajectory_group))
            rewards[0][1].update(losses | branch_metrics(trajectory_group) | self._noted)
        return rewards

    def note(self, metrics: Metrics) -> None:
        """Add metrics that only the group's strategy knows."""
        self._noted = metrics

    def _losses(self, *, survivors: int) -> Metrics:
        lost_to = Counter(error_name(env.error) for env in self._envs if env.error is not None)
        masked = self.template.group_size - survivors
        named = {f"infra/{name}": lost_to[name] for name in (*_INFRASTRUCTURE_ERRORS, *lost_to)}
        lost = lost_to.total()
        return {"infra/lost": lost, "infra/masked": masked, "infra/retried": lost - masked, **named}

    async def cleanup(self) -> None:
        """Close every environment of this builder concurrently. An environment's failure to close is only logged."""
        envs, self._envs = self._envs, []
        async with asyncio.TaskGroup() as tasks:
            for env in envs:
                tasks.create_task(_close(env))

    async def _pool(self) -> WarmPool | None:
        """Return the running loop's pool for this configuration, started; None if none is needed.

        Close it with :func:`harbor_gym.pool.close_shared_pools` after the training; the loop's end closes it, too.
        """
        if not self.warm_sandboxes or not isinstance(self.template.env, TerminalEnvConfig):
            return None
        if self.in_worker:
            return await portal_pool(self.own_env, size=self.warm_sandboxes)
        pool = shared_pool(self.own_env, size=self.warm_sandboxes)
        if self.is_last:
            pool.stop_refilling()
        return pool

    def logging_tags(self) -> list[str]:
        """Return the task's name, under which the loop aggregates metrics."""
        return [self.task_name or self.template.env.task_dir.name]

    def _make_env(
        self, codec: TrainedCodec, index: int, pool: WarmPool | None, *, start_from: Snapshot | None = None
    ) -> EpisodeEnv:
        template, path = self.template, self._transcript_path(index)
        budgets: dict[str, Any] = {
            "max_tokens": template.max_tokens,
            "max_context_tokens": template.max_context_tokens,
        }
        kept: dict[str, Any] = {
            "labels": self._labels(index),
            "transcript_path": path,
            "reward": find_trajectory_reward(template.trajectory_reward),
        }
        if isinstance(template.env, AgentEpisodeConfig):
            from harbor_gym.adapters.tinker.agent_env import HarborAgentTinkerEnv

            if start_from is not None:
                raise UsageError("branch is for our own loop: an episode of one of Harbor's agents has no copy")
            if template.make_env is not None:
                raise UsageError("make_env is for our own loop: Harbor's trial starts the sandbox of an agent")
            return HarborAgentTinkerEnv(template.env, codec, **budgets, **kept)
        config = self.own_env
        if path is not None:
            config = config.model_copy(update={"recording_path": path.with_suffix(".cast")})
        if start_from is not None:
            config = config.model_copy(update={**NO_START, "start_from": start_from})
        env = find_make_env(template.make_env)(config, pool=pool)
        portal = PortalEnv(env) if pool is not None and self.in_worker else env
        return HarborTerminalTinkerEnv(TokenTerminalEnv(portal, codec, **budgets), codec, **kept)

    def _transcript_path(self, index: int) -> Path | None:
        if self.template.transcripts_dir is None:
            return None
        return Path(self.template.transcripts_dir) / self.label / f"episode_{index + 1:03d}.json"

    def _labels(self, index: int) -> dict[str, Any]:
        return {"task": self.task_name or self.template.env.task_dir.name, "group": self.label, "episode": index + 1}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_envs": []}


async def _close(env: EpisodeEnv) -> None:
    try:
        await env.close()
    except HarborGymError as exc:
        # The cookbook requires that cleanup does not raise, since that would hide a rollout's error.
        logger.warning("an environment did not close cleanly: %s", exc)
