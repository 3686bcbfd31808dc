"""Batches of groups, of one task or of many, for tinker-cookbook's RL loop."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chz
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder

from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
from harbor_gym.adapters.tinker.template import GroupTemplate
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.config.snapshot import NO_START, has_to_be_drawn
from harbor_gym.errors import UsageError
from harbor_gym.pool import shared_pool
from harbor_gym.starts import Starts, level_of
from harbor_gym.tasks import SourcedTask, TaskOrder, filter_tasks, resolve_tasks, split_tasks
from harbor_gym.tasks.receipts import playable_tasks

_AS_GRADED: Mapping[str, Any] = {"zero_reward_on_limit": False}


class HarborRLDataset(RLDataset):
    """Batches of groups, each group of one task. Every batch is full, and deterministic.

    Args:
        templates: One group builder per task; each copy gets its own label.
        order: The order of the tasks.
        groups_per_batch: Groups in a batch.
        num_batches: Batches in the dataset.
        split: First part of each label, ``train`` or ``test``.
        warm_sandboxes: Sandboxes to keep ready for the next batch, spread over its groups or the workers.
        workers: Processes that play the groups; 0 plays them in this process.
    """

    def __init__(
        self,
        templates: Sequence[HarborSingleTaskEnvGroupBuilder],
        order: TaskOrder,
        *,
        groups_per_batch: int,
        num_batches: int,
        split: str,
        warm_sandboxes: int = 0,
        workers: int = 0,
    ) -> None:
        for name, value in (("groups_per_batch", groups_per_batch), ("num_batches", num_batches)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if warm_sandboxes < 0:
            raise UsageError(f"warm_sandboxes must be at least 0, got {warm_sandboxes}")
        self._templates = list(templates)
        self._order = order
        self._groups_per_batch = groups_per_batch
        self._num_batches = num_batches
        self._split = split
        self._warm_sandboxes = warm_sandboxes
        self._workers = workers
        self.starts: Starts | None = None
        """Where the groups begin, if each draws one; a group's episodes share it."""
        self.seed = 0
        """Decides the draws."""
        if warm_sandboxes and workers and len(self._templates) > 1:
            raise UsageError("warm sandboxes of workers need a single task: none knows the task of its next group")

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return the group builders of batch ``index``."""
        if not 0 <= index < self._num_batches:
            raise IndexError(f"batch {index} of a dataset of {self._num_batches}")
        stock, next_stock = self._stock(index), self._stock(index + 1)
        in_worker = self._workers > 0
        ahead = {} if in_worker else next_stock
        warm_next = tuple((self._templates[task].own_env, size) for task, size in ahead.items() if size)
        return [
            dataclasses.replace(
                self._begun(self._templates[task], label, index),
                label=label,
                warm_sandboxes=stock[task],
                in_worker=in_worker,
                warm_next=warm_next,
                is_last=task not in next_stock,
            )
            for number, task in enumerate(self._tasks(index))
            for label in [f"{self._split}/batch_{index + 1:04d}/group_{number + 1}"]
        ]

    def _begun(self, group: HarborSingleTaskEnvGroupBuilder, label: str, index: int) -> HarborSingleTaskEnvGroupBuilder:
        """Return the group with the start that it draws, if there is one to draw."""
        if self.starts is None:
            return group
        level, run = 0, group.template.transcripts_dir
        if group.own_env.start_turn == "backward":
            if run is None:
                raise UsageError(
                    "start_turn: backward reads the run's rewards: set transcripts_dir, in the run's folder"
                )
            level = level_of(Path(run).parent, *group.logging_tags(), before=index)
        env = self.starts.draw(group.own_env, f"{self.seed}/{label}", level=level)
        return dataclasses.replace(group, template=dataclasses.replace(group.template, env=env))

    def __len__(self) -> int:
        return self._num_batches

    def warm_up(self) -> None:
        """Begin to start the sandboxes of the first batch. Sandboxes of later batches start one batch ahead."""
        if self._workers:
            return
        for task, size in self._stock(0).items():
            if size:
                shared_pool(self._templates[task].own_env, size=size)

    def _tasks(self, index: int) -> list[int]:
        first = index * self._groups_per_batch
        return [self._order[first + number] for number in range(self._groups_per_batch)]

    def _stock(self, index: int) -> Counter[int]:
        """Return task → number of sandboxes to keep ready for a batch; empty beyond the last batch.

        A worker keeps its share for the single task to the end, since it does not know its last group.
        """
        stock: Counter[int] = Counter()
        if self._workers and self._warm_sandboxes:
            return Counter({0: worker_stock(self._warm_sandboxes, self._workers)})
        if index < self._num_batches:
            each, rest = divmod(self._warm_sandboxes, self._groups_per_batch)
            for number, task in enumerate(self._tasks(index)):
                stock[task] += each + (number < rest)
        return stock


def worker_stock(warm_sandboxes: int, workers: int) -> int:
    """Return each worker's share of the warm sandboxes, rounded up."""
    return -(-warm_sandboxes // workers)


class HarborSingleTaskRLDataset(HarborRLDataset):
    """Batches of groups, all of the same task.

    Args:
        template: The group to repeat, with the number of sandboxes to keep ready.
        groups_per_batch: Groups in a batch.
        num_batches: Batches in the dataset.
        split: First part of each label, ``train`` or ``test``.
        workers: Processes that play the groups; 0 plays them in this process.
    """

    def __init__(
        self,
        template: HarborSingleTaskEnvGroupBuilder,
        *,
        groups_per_batch: int,
        num_batches: int,
        split: str,
        workers: int = 0,
    ) -> None:
        super().__init__(
            [template],
            TaskOrder([1.0]),
            groups_per_batch=groups_per_batch,
            num_batches=num_batches,
            split=split,
            warm_sandboxes=template.warm_sandboxes,
            workers=workers,
        )


@chz.chz
class _Builder(RLDatasetBuilder):
    template: GroupTemplate
    """The settings of each training group."""

    groups_per_batch: int = 1
    """Groups in a training batch."""

    test_episodes: int = 0
    """Episodes of each task in an evaluation; 0 makes no test set."""

    warm_sandboxes: int = 0
    """Training sandboxes to keep ready, so that they start while the previous batch trains; 0 keeps none."""

    rollout_workers: int = 0
    """Processes that play the groups, each with its share of the warm sandboxes; 0 plays them in the loop's process."""

    seed: int = 0
    """Seed of all draws: the starts, and with many tasks the split and the epochs' order."""

    def _group(self, task_dir: Path, size: int, *, name: str = "") -> HarborSingleTaskEnvGroupBuilder:
        if size < 1:
            raise UsageError(f"group_size must be at least 1, got {size}")
        env = self.template.env.model_copy(update={"task_dir": task_dir})
        template = dataclasses.replace(self.template, env=env, group_size=size)
        if isinstance(env, AgentEpisodeConfig):
            from harbor_gym.adapters.harbor.agents import require_agent

            require_agent(env)
        return HarborSingleTaskEnvGroupBuilder(template, task_name=name)

    async def _starts(self) -> Starts | None:
        env = self.template.env
        return await asyncio.to_thread(Starts.read, env, in_tokens=True) if isinstance(env, TerminalEnvConfig) else None

    def _test_set(self, tasks: Mapping[str, Path]) -> HarborRLDataset | None:
        """Return one batch of ``test_episodes`` of each task."""
        if not self.test_episodes:
            return None
        # One episode per group: each counts by itself, without a shared baseline, with Harbor's own reward.
        groups = [self._group(path, 1, name=name) for name, path in tasks.items()]
        return HarborRLDataset(
            [_as_graded(group) for group in groups],
            TaskOrder([1.0] * len(tasks), shuffle=False),
            groups_per_batch=len(tasks) * self.test_episodes,
            num_batches=1,
            split="test",
        )


def _as_graded(group: HarborSingleTaskEnvGroupBuilder) -> HarborSingleTaskEnvGroupBuilder:
    template = group.template
    env = template.env.model_copy(update={**_AS_GRADED, **(NO_START if has_to_be_drawn(template.env) else {})})
    graded = dataclasses.replace(template, env=env, trajectory_reward=None, branch=None)
    return dataclasses.replace(group, template=graded)


@chz.chz
class HarborSingleTaskRLDatasetBuilder(_Builder):
    """Train on one task: the configuration of a dataset, for the cookbook's ``Config.dataset_builder``."""

    num_batches: int = 25
    """Training batches."""

    async def __call__(self) -> tuple[HarborSingleTaskRLDataset, HarborRLDataset | None]:
        """Return the training set, and the test set if there are ``test_episodes``. Warm sandboxes begin to start."""
        template = dataclasses.replace(
            self._group(self.template.env.task_dir, self.template.group_size), warm_sandboxes=self.warm_sandboxes
        )
        train = HarborSingleTaskRLDataset(
            template,
            groups_per_batch=self.groups_per_batch,
            num_batches=self.num_batches,
            split="train",
            workers=self.rollout_workers,
        )
        train.starts, train.seed = await self._starts(), self.seed
        train.warm_up()
        return train, self._test_set({"": self.template.env.task_dir})


@chz.chz
class HarborRLDatasetBuilder(_Builder):
    """Train on many tasks: the configuration of a dataset, for the cookbook's ``Config.dataset_builder``.

    A resumed run continues where it was, since batch ``i`` always has the same groups. Give resolved tasks
    (:func:`harbor_gym.tasks.resolve_tasks`) if a branch or a directory may change between runs.
    """

    tasks: Sequence[str | SourcedTask] = ()
    """Sources of the tasks, see :func:`harbor_gym.tasks.parse_spec`. Each task replaces ``template.env.task_dir``,
    which is the default source."""

    where: Sequence[str] = ()
    """Conditions that a task must meet, see :func:`harbor_gym.tasks.filter_tasks`."""

    weights: Mapping[str, float] = chz.field(default_factory=dict[str, float])
    """Task name → how often it occurs in an epoch; other tasks occur once."""

    test_fraction: float = 0.0
    """Share of the tasks to test on only, drawn by ``seed``."""

    test_tasks: Sequence[str] = ()
    """Names of the tasks to test on only. If there are none, the training tasks are the test set."""

    shuffle: bool = True
    """Whether to shuffle the tasks in each epoch."""

    epochs: int | None = None
    """Passes over the training tasks; the last batch is filled up from a further pass."""

    num_batches: int | None = None
    """Training batches, instead of ``epochs``."""

    async def __call__(self) -> tuple[HarborRLDataset, HarborRLDataset | None]:
        """Return the training set, and the test set if there are ``test_episodes``. Warm sandboxes begin to start."""
        train, test = await self.split()
        dataset = self.training_set(train)
        dataset.starts, dataset.seed = await self._starts(), self.seed
        dataset.warm_up()
        return dataset, self._test_set({task.name: task.path for task in test or train})

    async def test_set(self) -> HarborRLDataset | None:
        """Return the test set without starting sandboxes; None without ``test_episodes``."""
        train, test = await self.split()
        return self._test_set({task.name: task.path for task in test or train})

    def training_set(self, tasks: Sequence[SourcedTask]) -> HarborRLDataset:
        """Return the batches of these tasks, without starting sandboxes.

        Raises:
            UsageError: A weight or a number is invalid.
        """
        order = TaskOrder(self._weights(tasks), seed=self.seed, shuffle=self.shuffle)
        return HarborRLDataset(
            [self._group(task.path, self.template.group_size, name=task.name) for task in tasks],
            order,
            groups_per_batch=self.groups_per_batch,
            num_batches=self._num_batches(order),
            split="train",
            warm_sandboxes=self.warm_sandboxes,
            workers=self.rollout_workers,
        )

    async def split(self) -> tuple[list[SourcedTask], list[SourcedTask]]:
        """Return the tasks to train on, and the held-out ones.

        Raises:
            UsageError: A source, a condition or the split is invalid.
            TaskError: A task is not available or can't be read.
        """
        tasks = await resolve_tasks(self.tasks or [self.template.env.task_dir])
        kept = playable_tasks(filter_tasks(tasks, self.where), self.template.env)
        return split_tasks(kept, test_fraction=self.test_fraction, test_tasks=self.test_tasks, seed=self.seed)

    def _weights(self, tasks: Sequence[SourcedTask]) -> list[float]:
        names = {task.name for task in tasks}
        if unknown := sorted(set(self.weights) - names):
            raise UsageError(f"no training task is called {', '.join(unknown)}; there are {', '.join(sorted(names))}")
        return [self.weights.get(task.name, 1.0) for task in tasks]

    def _num_batches(self, order: TaskOrder) -> int:
        if (self.epochs is None) == (self.num_batches is None):
            raise UsageError("give either epochs or num_batches")
        if self.num_batches is not None:
            return self.num_batches
        assert self.epochs is not None
        if self.epochs < 1:
            raise UsageError(f"epochs must be at least 1, got {self.epochs}")
        return max(1, -(-order.places_before(self.epochs) // max(self.groups_per_batch, 1)))
