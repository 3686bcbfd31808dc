"""Harbor tasks in SkyRL (extra ``skyrl``): a generator for its trainers, a whole experiment, an environment for
skyrl-gym, and a writer of its datasets.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

if TYPE_CHECKING:
    from harbor_gym.adapters.skyrl.dataset import write_dataset
    from harbor_gym.adapters.skyrl.experiment import HarborExp, HarborTrainConfig, main
    from harbor_gym.adapters.skyrl.generator import HarborTerminalGenerator
    from harbor_gym.adapters.skyrl.settings import HarborSettings
    from harbor_gym.adapters.skyrl.text_env import HarborTextEnv, register

_HOMES = {
    "HarborExp": "experiment",
    "HarborSettings": "settings",
    "HarborTerminalGenerator": "generator",
    "HarborTextEnv": "text_env",
    "HarborTrainConfig": "experiment",
    "main": "experiment",
    "register": "text_env",
    "write_dataset": "dataset",
}

_PACKAGES = ("skyrl", "skyrl_gym", "torch", "transformers", "ray", "omegaconf", "loguru", "jaxtyping", "torchdata")

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if missing := [package for package in _PACKAGES if find_spec(package) is None]:
        message = f'harbor_gym.adapters.skyrl needs {missing[0]}: pip install "harbor-gym[skyrl]"'
        raise MissingDependencyError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
