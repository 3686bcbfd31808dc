"""harbor_gym for tinker-cookbook's RL loop (extra ``tinker``).

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

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

_HOMES = {
    "HarborAgentEnvGroupBuilder": "agent_group",
    "HarborAgentTinkerEnv": "agent_env",
    "HarborEvaluator": "evaluator",
    "HarborRLDataset": "dataset",
    "HarborRLDatasetBuilder": "dataset",
    "HarborSingleTaskEnvGroupBuilder": "group",
    "HarborSingleTaskRLDataset": "dataset",
    "HarborSingleTaskRLDatasetBuilder": "dataset",
    "HarborTerminalTinkerEnv": "env",
    "RendererCodec": "codec",
    "RetryThenMask": "strategy",
    "TrainConfig": "training.config",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as exc:
        if exc.name not in ("tinker", "tinker_cookbook", "chz"):
            raise
        message = 'harbor_gym.tinker needs tinker-cookbook: pip install "harbor-gym[tinker]"'
        raise MissingDependencyError(message) from exc


def __dir__() -> list[str]:
    return sorted(__all__)
