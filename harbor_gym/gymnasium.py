"""The short name of :mod:`harbor_gym.adapters.gymnasium`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.gymnasium import *  # noqa: F403  # all of its names
else:
    from harbor_gym.adapters.gymnasium import __all__, __dir__, __getattr__  # noqa: F401
