"""A planned training run: its settings, its tasks and its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.adapters.tinker.training.config import TrainConfig
from harbor_gym.config import AnyEpisode
from harbor_gym.tasks import SourcedTask

if TYPE_CHECKING:
    from harbor_gym.adapters.tinker.dataset import HarborRLDatasetBuilder


@dataclass(frozen=True)
class TrainRun:
    """A run with resolved tasks and checked settings."""

    config: TrainConfig

    env: AnyEpisode
    """The configuration's ``env``, with the first training task."""

    tasks: tuple[SourcedTask, ...]
    """All tasks, also those to test on."""

    test_tasks: tuple[str, ...]
    """Names of the tasks to test on."""

    log_path: Path
    """The run's folder, absolute."""

    @property
    def train_tasks(self) -> list[SourcedTask]:
        """The tasks to train on."""
        return [task for task in self.tasks if task.name not in self.test_tasks]

    @property
    def test_episodes(self) -> int:
        """Episodes of each task in an evaluation."""
        if self.config.test_episodes is not None:
            return self.config.test_episodes
        return 1 if len(self.test_tasks or self.train_tasks) > 1 else self.config.group_size

    @property
    def title(self) -> str:
        """A one-line description of the run."""
        name = f"{len(self.tasks)} tasks" if len(self.tasks) > 1 else self.env.task_dir.name
        return f"{name}, {self.env.sandbox}, learning rate {self.config.learning_rate:g}"

    def dataset_builder(self, model_name: str, test_episodes: int = 0) -> "HarborRLDatasetBuilder":
        """Return the builder of the run's batches and test set, for the cookbook's loop.

        Args:
            model_name: The base model.
            test_episodes: Episodes of each task in the test set; 0 makes no test set.
        """
        from harbor_gym.adapters.tinker.dataset import HarborRLDatasetBuilder  # needs the extra
        from harbor_gym.adapters.tinker.template import GroupTemplate

        config = self.config
        template = GroupTemplate(
            env=self.env,
            model_name=model_name,
            renderer_name=config.renderer_name,
            max_tokens=config.max_tokens,
            max_context_tokens=config.max_context_tokens,
            group_size=config.group_size,
            branch=config.branch,
            transcripts_dir=self.log_path / "transcripts",
            make_env=config.make_env,
            trajectory_reward=config.trajectory_reward,
        )
        return HarborRLDatasetBuilder(
            template=template,
            tasks=self.tasks,
            test_tasks=self.test_tasks,
            weights=config.task_weights,
            seed=config.seed,
            groups_per_batch=config.groups_per_batch,
            warm_sandboxes=config.warm_sandboxes,
            rollout_workers=config.rollout_workers if config.rollout_executor is not None else 0,
            num_batches=config.num_batches,
            epochs=config.epochs,
            test_episodes=test_episodes,
        )

    def count_batches(self) -> int:
        """Return the number of batches of the whole run.

        Raises:
            UsageError: The weights or the numbers are invalid.
        """
        return len(self.dataset_builder(self.config.model_name or "").training_set(self.train_tasks))
