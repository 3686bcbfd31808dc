"""Harbor tasks in SkyRL (extra ``skyrl``): a generator, an experiment, and datasets.

Each name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.skyrl.dataset import write_dataset as write_dataset
    from harbor_gym.adapters.skyrl.experiment import HarborExp as HarborExp
    from harbor_gym.adapters.skyrl.experiment import HarborTrainConfig as HarborTrainConfig
    from harbor_gym.adapters.skyrl.experiment import main as main
    from harbor_gym.adapters.skyrl.generator import HarborTerminalGenerator as HarborTerminalGenerator
    from harbor_gym.adapters.skyrl.settings import HarborSettings as HarborSettings
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".dataset": "write_dataset",
            ".experiment": "HarborExp HarborTrainConfig main",
            ".generator": "HarborTerminalGenerator",
            ".settings": "HarborSettings",
        },
        requires=(
            "skyrl",
            "skyrl_gym",
            "torch",
            "transformers",
            "ray",
            "omegaconf",
            "loguru",
            "jaxtyping",
            "torchdata",
        ),
        install='"harbor-gym[skyrl]"',
    )
