"""Evaluation during training, by default of the greedy policy; records the best checkpoint."""

import asyncio
import dataclasses
import logging
from typing import Any, override

import tinker
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_logging import RolloutSummaryExportConfig

from harbor_gym._runtime.files import StrPath
from harbor_gym.adapters.tinker.dataset import HarborRLDataset
from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
from harbor_gym.adapters.tinker.strategy import RetryThenMask
from harbor_gym.evaluation.best import Evaluated, note_evaluation
from harbor_gym.stragglers import Stragglers

logger = logging.getLogger(__name__)


class HarborEvaluator(RLTestSetEvaluator):
    """Play a test set every ``eval_every`` batches, for the cookbook's ``Config.evaluator_builders``.

    The cookbook's own evaluator samples at temperature 1. The metrics have the same names: ``test/env/all/…``. Each
    evaluation is added to the run's ``best.json``, see :mod:`harbor_gym.evaluation.best`, unless the infrastructure
    lost all its episodes.

    Args:
        dataset: The test set.
        max_tokens: The sampler's limit for one message, in tokens.
        run_dir: The run's folder.
        strategy: How to treat lost episodes.
        temperature: Sampling temperature; 0 is greedy.
        first_checkpoint: Name of the weights before the first batch: ``base``, or ``tinker://…``.
    """

    def __init__(
        self,
        dataset: HarborRLDataset,
        *,
        max_tokens: int,
        run_dir: StrPath,
        strategy: RetryThenMask,
        temperature: float = 0.0,
        first_checkpoint: str = "base",
    ) -> None:
        # The strategy has the temperature, so that rollouts in other processes have it, too. A test drops no episode.
        strategy = dataclasses.replace(strategy, temperature=temperature, stragglers=Stragglers())
        super().__init__(dataset, max_tokens=max_tokens, strategy=strategy)
        self._run_dir = run_dir
        self._first_checkpoint = first_checkpoint

    @override
    async def __call__(
        self,
        sampling_client: tinker.SamplingClient,
        *,
        rollout_summary_export: RolloutSummaryExportConfig | None = None,
        store: Any = None,
    ) -> dict[str, float]:
        """Evaluate the loop's current weights; the loop passes the batch with the summary's destination."""
        assert rollout_summary_export is not None, "the cookbook passes it unless Config.rollout_json_export is off"
        batch = rollout_summary_export.iteration
        return await self.evaluate(
            sampling_client,
            batch=batch,
            checkpoint=f"{batch:06d}" if batch else self._first_checkpoint,
            rollout_summary_export=rollout_summary_export,
            store=store,
        )

    async def evaluate(
        self, sampling_client: tinker.SamplingClient, *, batch: int, checkpoint: str, **export: Any
    ) -> dict[str, float]:
        """Evaluate the weights after ``batch`` batches, which are saved as ``checkpoint``."""
        self.env_group_builders_P = [_labelled(builder, batch) for builder in self.env_group_builders_P]
        metrics = await super().__call__(sampling_client, **export)
        reward = metrics.get(f"{self.name}/env/all/reward/total")
        if reward is None:
            logger.warning("the test after batch %d has no result: all its episodes were lost", batch)
            return metrics
        evaluated = Evaluated(
            batch=batch,
            checkpoint=checkpoint,
            reward=reward,
            turns=metrics.get(f"{self.name}/env/all/turns_per_episode"),
            episodes=int(metrics[f"{self.name}/env/all/total_episodes"]),
        )
        await asyncio.to_thread(note_evaluation, self._run_dir, evaluated)
        return metrics


def _labelled(builder: Any, batch: int) -> HarborSingleTaskEnvGroupBuilder:
    """Return a builder of the same group, labelled for this evaluation's transcripts."""
    group = builder.label.rpartition("/")[2]
    return dataclasses.replace(builder, label=f"test/batch_{batch:04d}/{group}")
