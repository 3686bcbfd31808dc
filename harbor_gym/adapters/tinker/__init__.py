"""harbor_gym for tinker-cookbook's RL loop (extra ``tinker``).

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.tinker.agent_env import HarborAgentTinkerEnv
    from harbor_gym.adapters.tinker.agent_group import HarborAgentEnvGroupBuilder
    from harbor_gym.adapters.tinker.codec import RendererCodec
    from harbor_gym.adapters.tinker.dataset import (
        HarborRLDataset,
        HarborRLDatasetBuilder,
        HarborSingleTaskRLDataset,
        HarborSingleTaskRLDatasetBuilder,
    )
    from harbor_gym.adapters.tinker.env import HarborTerminalTinkerEnv
    from harbor_gym.adapters.tinker.evaluator import HarborEvaluator
    from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder
    from harbor_gym.adapters.tinker.strategy import RetryThenMask
    from harbor_gym.adapters.tinker.training.config import TrainConfig

__all__ = [
    "HarborAgentEnvGroupBuilder",
    "HarborAgentTinkerEnv",
    "HarborEvaluator",
    "HarborRLDataset",
    "HarborRLDatasetBuilder",
    "HarborSingleTaskEnvGroupBuilder",
    "HarborSingleTaskRLDataset",
    "HarborSingleTaskRLDatasetBuilder",
    "HarborTerminalTinkerEnv",
    "RendererCodec",
    "RetryThenMask",
    "TrainConfig",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "agent_env": ("HarborAgentTinkerEnv",),
        "agent_group": ("HarborAgentEnvGroupBuilder",),
        "codec": ("RendererCodec",),
        "dataset": (
            "HarborRLDataset",
            "HarborRLDatasetBuilder",
            "HarborSingleTaskRLDataset",
            "HarborSingleTaskRLDatasetBuilder",
        ),
        "env": ("HarborTerminalTinkerEnv",),
        "evaluator": ("HarborEvaluator",),
        "group": ("HarborSingleTaskEnvGroupBuilder",),
        "strategy": ("RetryThenMask",),
        "training.config": ("TrainConfig",),
    },
    requires=("tinker", "tinker_cookbook", "chz"),
    install='"harbor-gym[tinker]"',
)
