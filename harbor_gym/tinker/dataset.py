"""Groups and batches of one task for tinker-cookbook's RL loop."""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import chz
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder, Trajectory
from tinker_cookbook.tokenizer_utils import get_tokenizer

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.pool import WarmPool, shared_pool
from harbor_gym.terminal_env import AsyncTerminalGymEnv
from harbor_gym.tinker.codec import RendererCodec
from harbor_gym.tinker.env import STOP_REASONS, HarborTerminalTinkerEnv
from harbor_gym.token_env import TokenTerminalEnv

logger = logging.getLogger(__name__)


@functools.lru_cache(maxsize=8)
def _codec(renderer_name: str, model_name: str) -> RendererCodec:
    return RendererCodec(get_renderer(renderer_name, get_tokenizer(model_name), model_name=model_name))


@dataclass
class HarborSingleTaskEnvGroupBuilder(EnvGroupBuilder):
    """Make a group of environments of one task. Holds configuration only until ``make_envs``, so it pickles.

    Sandboxes start when the loop asks for the first observations, all of a group at once: environments that a
    retry made and did not need cost nothing.
    """

    config: TerminalEnvConfig
    """The task, the sandbox and the budgets of each episode."""

    group_size: int
    """Episodes in the group."""

    model_name: str
    """Whose tokenizer to use: a model's name, or its directory."""

    renderer_name: str
    """A tinker-cookbook renderer."""

    max_tokens: int
    """The sampler's limit for one message, in tokens."""

    max_context_tokens: int | None = None
    """The model's context window in tokens; None checks nothing."""

    label: str = ""
    """Names the group in transcripts: a relative path such as ``train/batch_0003/group_0``."""

    transcripts_dir: Path | None = None
    """Where to write transcripts and, beside each, the terminal's recording; None writes none."""

    warm_sandboxes: int = 0
    """Sandboxes that the event loop keeps ready for all groups of this configuration; 0 keeps none."""

    is_last: bool = False
    """Whether no later group will want a sandbox: the stock is then used up and not renewed."""

    _envs: list[HarborTerminalTinkerEnv] = field(default_factory=list[HarborTerminalTinkerEnv], init=False, repr=False)
    _made: int = field(default=0, init=False, repr=False)

    async def make_envs(self) -> Sequence[Env]:
        """Make ``group_size`` environments. May be called again for retries; ``cleanup`` closes all of them."""
        codec = await asyncio.to_thread(_codec, self.renderer_name, self.model_name)
        pool = self.warm_pool()
        if pool is not None and self.is_last:
            pool.stop_refilling()
        envs = [self._make_env(codec, self._made + index, pool) for index in range(self.group_size)]
        self._made += self.group_size
        self._envs.extend(envs)
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Add nothing to the verifier's rewards; report how each episode ended, for shares over the batch."""
        return [
            (0.0, {f"ended/{reason}": float(trajectory.stop_reason == reason) for reason in STOP_REASONS})
            for trajectory in trajectory_group
        ]

    async def cleanup(self) -> None:
        """Close every environment this builder made, all at once. Never raises for one that fails to close."""
        envs, self._envs = self._envs, []
        async with asyncio.TaskGroup() as tasks:
            for env in envs:
                tasks.create_task(_close(env))

    def warm_pool(self) -> WarmPool | None:
        """Return the running loop's pool for this configuration, started; None where none is wanted.

        Close it with :func:`harbor_gym.pool.close_shared_pools` when the training ends; else the loop's end does.
        """
        return shared_pool(self.config, size=self.warm_sandboxes) if self.warm_sandboxes else None

    def logging_tags(self) -> list[str]:
        """Return the task's name, under which the loop aggregates metrics."""
        return [self.config.task_dir.name]

    def _make_env(self, codec: RendererCodec, index: int, pool: WarmPool | None) -> HarborTerminalTinkerEnv:
        path, config = None, self.config
        if self.transcripts_dir is not None:
            path = self.transcripts_dir / self.label / f"episode_{index:03d}.json"
            config = config.model_copy(update={"recording_path": path.with_suffix(".cast")})
        token_env = TokenTerminalEnv(
            AsyncTerminalGymEnv(config, pool=pool),
            codec,
            max_tokens=self.max_tokens,
            max_context_tokens=self.max_context_tokens,
        )
        labels = {"task": self.config.task_dir.name, "group": self.label, "episode": index}
        return HarborTerminalTinkerEnv(token_env, codec, labels=labels, transcript_path=path)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_envs": []}


async def _close(env: HarborTerminalTinkerEnv) -> None:
    try:
        await env.close()
    except HarborGymError as exc:
        # The cookbook asks cleanup not to raise: that would hide the error of a rollout.
        logger.warning("an environment did not close cleanly: %s", exc)


class HarborSingleTaskRLDataset(RLDataset):
    """Batches of groups, all of the same task.

    Args:
        template: The group to repeat; each copy gets a label of its own.
        groups_per_batch: Groups in a batch.
        num_batches: Batches in the dataset.
        split: First part of each label, ``train`` or ``test``.
    """

    def __init__(
        self, template: HarborSingleTaskEnvGroupBuilder, *, groups_per_batch: int, num_batches: int, split: str
    ) -> None:
        for name, value in (("groups_per_batch", groups_per_batch), ("num_batches", num_batches)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        self._template = template
        self._groups_per_batch = groups_per_batch
        self._num_batches = num_batches
        self._split = split

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return the group builders of batch ``index``."""
        if not 0 <= index < self._num_batches:
            raise IndexError(f"batch {index} of a dataset of {self._num_batches}")
        is_last = index == self._num_batches - 1
        labels = [f"{self._split}/batch_{index:04d}/group_{n}" for n in range(self._groups_per_batch)]
        return [dataclasses.replace(self._template, label=label, is_last=is_last) for label in labels]

    def __len__(self) -> int:
        return self._num_batches


@chz.chz
class HarborSingleTaskRLDatasetBuilder(RLDatasetBuilder):
    """Train on one task: the configuration of a dataset, for the cookbook's ``Config.dataset_builder``."""

    env: TerminalEnvConfig
    """The task, the sandbox and the budgets of each episode."""

    model_name: str
    """Whose tokenizer to use: a model's name, or its directory."""

    renderer_name: str
    """A tinker-cookbook renderer."""

    max_tokens: int
    """The sampler's limit for one message, in tokens."""

    max_context_tokens: int | None = None
    """The model's context window in tokens; None checks nothing."""

    groups_per_batch: int = 1
    """Groups in a training batch."""

    group_size: int = 8
    """Episodes in a training group."""

    num_batches: int = 25
    """Training batches."""

    test_episodes: int = 0
    """Episodes of each evaluation; 0 makes no test set."""

    transcripts_dir: str | None = None
    """Where to write transcripts; None writes none."""

    warm_sandboxes: int = 0
    """Training sandboxes to keep ready, so that a batch's start while the last one trains; 0 keeps none."""

    async def __call__(self) -> tuple[HarborSingleTaskRLDataset, HarborSingleTaskRLDataset | None]:
        """Return the training set, and the test set if there are ``test_episodes``. Warm sandboxes begin to start."""
        if self.warm_sandboxes < 0:
            raise UsageError(f"warm_sandboxes must be at least 0, got {self.warm_sandboxes}")
        template = dataclasses.replace(self._group(self.group_size), warm_sandboxes=self.warm_sandboxes)
        template.warm_pool()
        train = HarborSingleTaskRLDataset(
            template,
            groups_per_batch=self.groups_per_batch,
            num_batches=self.num_batches,
            split="train",
        )
        if not self.test_episodes:
            return train, None
        # One episode a group: each counts by itself, with no baseline to share.
        test = HarborSingleTaskRLDataset(
            self._group(1), groups_per_batch=self.test_episodes, num_batches=1, split="test"
        )
        return train, test

    def _group(self, size: int) -> HarborSingleTaskEnvGroupBuilder:
        if size < 1:
            raise UsageError(f"group_size must be at least 1, got {size}")
        return HarborSingleTaskEnvGroupBuilder(
            config=self.env,
            group_size=size,
            model_name=self.model_name,
            renderer_name=self.renderer_name,
            max_tokens=self.max_tokens,
            max_context_tokens=self.max_context_tokens,
            transcripts_dir=Path(self.transcripts_dir) if self.transcripts_dir is not None else None,
        )
