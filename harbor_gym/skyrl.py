"""The short name of :mod:`harbor_gym.adapters.skyrl`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.skyrl import *  # noqa: F403  # all of its names
else:
    from harbor_gym.adapters.skyrl import __all__, __dir__, __getattr__  # noqa: F401
