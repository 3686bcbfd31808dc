"""harbor_gym for tinker-cookbook's RL loop (extra ``tinker``)."""

from harbor_gym.errors import MissingDependencyError

try:
    import tinker_cookbook as _tinker_cookbook  # noqa: F401  # pyright: ignore[reportUnusedImport]  # presence check
except ModuleNotFoundError as exc:
    if exc.name not in ("tinker", "tinker_cookbook"):
        raise
    raise MissingDependencyError('harbor_gym.tinker needs tinker-cookbook: pip install "harbor-gym[tinker]"') from exc

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

__all__ = [
    "HarborEvaluator",
    "HarborRLDataset",
    "HarborRLDatasetBuilder",
    "HarborSingleTaskEnvGroupBuilder",
    "HarborSingleTaskRLDataset",
    "HarborSingleTaskRLDatasetBuilder",
    "HarborTerminalTinkerEnv",
    "RendererCodec",
    "RetryThenMask",
]
