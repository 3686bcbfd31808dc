"""SkyRL's experiment on Harbor tasks: SkyRL's configuration and trainers with this package's generator and datasets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import ray
from omegaconf import OmegaConf
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.fully_async_trainer_sim import FullyAsyncTrainerSim
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

from harbor_gym.adapters.skyrl.dataset import write_dataset
from harbor_gym.adapters.skyrl.generator import HarborTerminalGenerator
from harbor_gym.adapters.skyrl.settings import HarborSettings, check_settings
from harbor_gym.config.aliases import TRAINER, moved
from harbor_gym.errors import UsageError

_COUNTING_ESTIMATORS = {"rloo": "divides by the number of rows", "gae": "whitens over all rows"}
_COUNTING_ESTIMATORS["reinforce++"] = _COUNTING_ESTIMATORS["gae"]


@dataclass
class HarborTrainConfig(SkyRLTrainConfig):
    """SkyRL's configuration with a section ``harbor``; every field is a flag, such as ``harbor.env.sandbox=local``."""

    harbor: HarborSettings = field(default_factory=HarborSettings)
    """Tasks, episodes and retries."""

    @classmethod
    @override
    def from_dict_config(cls, cfg: Any) -> Any:
        """Return SkyRL's configuration from nested values, of which ``harbor`` may have earlier names."""
        given: Any = OmegaConf.to_container(cfg)
        if "harbor" in given:
            given["harbor"] = moved(given["harbor"], TRAINER)
        return super().from_dict_config(OmegaConf.create(given))


class SimulatedTrainer(FullyAsyncTrainerSim):
    """SkyRL's simulated trainer, which needs no GPU.

    Source: SkyRL 0.4.0. Its fake weight sync lacks two methods that the loop calls.
    """

    @override
    def init_weight_sync_state(self) -> None:
        """Install the fake weight sync, and add the missing methods."""
        super().init_weight_sync_state()
        dispatch: Any = self.dispatch
        dispatch.get_timing_metrics = dict
        dispatch.finalize_pending_saves = _do_nothing


def _do_nothing(model: object) -> None:
    pass


class HarborExp(BasePPOExp):
    """An experiment on Harbor tasks.

    It trains synchronously, fully asynchronously (``trainer.fully_async.enabled``), or with a simulated trainer
    (``trainer.fully_async.simulate_training``).

    Args:
        cfg: The resolved configuration.

    Raises:
        UsageError: A setting can't be used, or a lost episode would scale its group's advantages.
    """

    cfg: HarborTrainConfig

    def __init__(self, cfg: HarborTrainConfig) -> None:
        check_config(cfg)
        super().__init__(cfg)

    @override
    def get_train_dataset(self) -> PromptDataset:
        """Return the rows of ``harbor.tasks``, at least a batch, or else those of ``data.train_data``."""
        if not self.cfg.harbor.tasks:
            return super().get_train_dataset()
        return self._dataset(self.cfg.harbor.tasks, "train", min_rows=self.cfg.trainer.train_batch_size)

    @override
    def get_eval_dataset(self) -> PromptDataset | None:
        """Return the rows of ``harbor.eval_tasks`` if there are any, or else those of ``data.val_data``."""
        if not self.cfg.harbor.eval_tasks or self.cfg.trainer.eval_interval <= 0:
            return super().get_eval_dataset()
        return self._dataset(self.cfg.harbor.eval_tasks, "eval", min_rows=1)

    @override
    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> HarborTerminalGenerator:
        """Return a :class:`HarborTerminalGenerator`."""
        return HarborTerminalGenerator(
            cfg.generator,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            settings=cfg.harbor,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    @override
    def get_trainer(self, cfg: Any, *args: Any, **kwargs: Any) -> RayPPOTrainer:
        """Return the trainer that the configuration selects."""
        if cfg.trainer.fully_async.simulate_training:
            return SimulatedTrainer(cfg, *args, **kwargs)
        trainer = FullyAsyncRayPPOTrainer if cfg.trainer.fully_async.enabled else RayPPOTrainer
        return trainer(cfg, *args, **kwargs)

    def _dataset(self, tasks: Sequence[str], name: str, *, min_rows: int) -> PromptDataset:
        path = Path(self.cfg.trainer.export_path) / "harbor" / f"{name}.jsonl"
        episode = self.cfg.harbor.episode
        write_dataset(
            tasks,
            path,
            min_rows=min_rows,
            require_audit=episode.require_audit,
            refused_findings=episode.refused_findings,
        )
        return PromptDataset(
            datasets=[str(path)],
            tokenizer=self.tokenizer,  # pyright: ignore[reportArgumentType]  # SkyRL names the factory's type
            max_prompt_length=self.cfg.trainer.max_prompt_length,
            num_workers=0,
        )


def check_config(cfg: HarborTrainConfig) -> None:
    """Check the configuration before anything starts.

    With one row per episode, a lost episode keeps its row, with the mean reward of its group: an estimator that counts
    rows, or divides by their standard deviation, would scale the other advantages. Step-wise rows leave it out.

    Raises:
        UsageError: A setting can't be used, or a lost episode would scale its group's advantages.
    """
    check_settings(cfg.harbor, cfg.generator)
    if cfg.generator.step_wise_trajectories:
        return
    algorithm = cfg.trainer.algorithm
    estimator = str(algorithm.advantage_estimator)
    problem = _COUNTING_ESTIMATORS.get(estimator)
    if estimator == "grpo" and algorithm.grpo_norm_by_std:
        problem = "with grpo_norm_by_std divides by a standard deviation over all rows"
    if problem is not None:
        instead = " or trainer.algorithm.grpo_norm_by_std=false" if estimator == "grpo" else ""
        raise UsageError(
            f"the estimator {estimator} {problem}, so a lost episode would move the gradient of its group: set "
            f"generator.step_wise_trajectories=true and generator.merge_stepwise_output=true{instead}"
        )


def main(args: Sequence[str] | None = None) -> None:
    """Train, as SkyRL's own entry point does.

    Args:
        args: ``key.path=value`` overrides of :class:`HarborTrainConfig`; None takes the command line's.
    """
    cfg = HarborTrainConfig.from_cli_overrides(list(sys.argv[1:] if args is None else args))
    assert isinstance(cfg, HarborTrainConfig)
    check_config(cfg)
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(ray.remote(num_cpus=1)(_run).remote(cfg))


def _run(cfg: HarborTrainConfig) -> None:
    HarborExp(cfg).run()
