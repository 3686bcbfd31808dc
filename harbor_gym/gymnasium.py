"""The short name of :mod:`harbor_gym.adapters.gymnasium`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium import *  # noqa: F403  # an alias of the whole module


def __getattr__(name: str) -> Any:
    return getattr(import_module("harbor_gym.adapters.gymnasium"), name)
