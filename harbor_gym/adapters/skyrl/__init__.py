"""Harbor tasks in SkyRL (extra ``skyrl``): a generator for its trainers, a whole experiment, an environment for
skyrl-gym, and a writer of its datasets.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.skyrl.dataset import write_dataset
    from harbor_gym.adapters.skyrl.experiment import HarborExp, HarborTrainConfig, main
    from harbor_gym.adapters.skyrl.generator import HarborTerminalGenerator
    from harbor_gym.adapters.skyrl.settings import HarborSettings
    from harbor_gym.adapters.skyrl.text_env import HarborTextEnv, register

__all__ = [
    "HarborExp",
    "HarborSettings",
    "HarborTerminalGenerator",
    "HarborTextEnv",
    "HarborTrainConfig",
    "main",
    "register",
    "write_dataset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dataset": ("write_dataset",),
        "experiment": ("HarborExp", "HarborTrainConfig", "main"),
        "generator": ("HarborTerminalGenerator",),
        "settings": ("HarborSettings",),
        "text_env": ("HarborTextEnv", "register"),
    },
    requires=("skyrl", "skyrl_gym", "torch", "transformers", "ray", "omegaconf", "loguru", "jaxtyping", "torchdata"),
    install='"harbor-gym[skyrl]"',
)
