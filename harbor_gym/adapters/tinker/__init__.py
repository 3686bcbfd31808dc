"""harbor_gym for tinker-cookbook's RL loop (extra ``tinker``).

Each name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.tinker.agent_env import HarborAgentTinkerEnv as HarborAgentTinkerEnv
    from harbor_gym.adapters.tinker.codec import RendererCodec as RendererCodec
    from harbor_gym.adapters.tinker.dataset import HarborRLDataset as HarborRLDataset
    from harbor_gym.adapters.tinker.dataset import HarborRLDatasetBuilder as HarborRLDatasetBuilder
    from harbor_gym.adapters.tinker.dataset import HarborSingleTaskRLDataset as HarborSingleTaskRLDataset
    from harbor_gym.adapters.tinker.dataset import HarborSingleTaskRLDatasetBuilder as HarborSingleTaskRLDatasetBuilder
    from harbor_gym.adapters.tinker.env import HarborTerminalTinkerEnv as HarborTerminalTinkerEnv
    from harbor_gym.adapters.tinker.evaluator import HarborEvaluator as HarborEvaluator
    from harbor_gym.adapters.tinker.group import HarborSingleTaskEnvGroupBuilder as HarborSingleTaskEnvGroupBuilder
    from harbor_gym.adapters.tinker.strategy import RetryThenMask as RetryThenMask
    from harbor_gym.adapters.tinker.template import GroupTemplate as GroupTemplate
    from harbor_gym.adapters.tinker.training.config import TrainConfig as TrainConfig
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".agent_env": "HarborAgentTinkerEnv",
            ".codec": "RendererCodec",
            ".dataset": (
                "HarborRLDataset HarborRLDatasetBuilder HarborSingleTaskRLDataset HarborSingleTaskRLDatasetBuilder"
            ),
            ".env": "HarborTerminalTinkerEnv",
            ".evaluator": "HarborEvaluator",
            ".group": "HarborSingleTaskEnvGroupBuilder",
            ".strategy": "RetryThenMask",
            ".template": "GroupTemplate",
            ".training.config": "TrainConfig",
        },
        requires=("tinker", "tinker_cookbook", "chz"),
        install='"harbor-gym[tinker]"',
    )
